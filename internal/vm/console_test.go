// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestConsoleOops(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[    1.5] Kernel panic - not syncing: Fatal exception\r\n":                   "Kernel panic - not syncing: Fatal exception",
		"hello\n[  100.000000] BUG: kernel NULL pointer dereference, address: 0\n":    "BUG: kernel NULL pointer dereference, address: 0",
		"Oops: general protection fault\n":                                            "Oops: general protection fault",
		"[    1.5] clocksource: DEBUG: not a bug\n":                                   "",
		"[   40.1] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! (a busy host)\n": "",
		"[   40.1] rcu: INFO: rcu_preempt self-detected stall on CPU\n":               "",
	} {
		var c console
		fmt.Fprint(&c, text)
		if got := c.oops(); got != want {
			t.Errorf("%q: oops %q, want %q", text, got, want)
		}
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	t.Parallel()
	var c console
	for i := range 100_000 {
		fmt.Fprintf(&c, "line %d with something to make it long\r\n", i)
	}
	fmt.Fprint(&c, "[    2.0] WARNING: CPU: 0 PID: 1 at net/core/dev.c:1\r\n")
	if len(c.text) < consoleLimit || len(c.text) > 2*consoleLimit {
		t.Errorf("%d bytes kept, limit %d", len(c.text), consoleLimit)
	}
	lines := strings.Split(c.tail(), "\n")
	if len(lines) != tailLines || !strings.HasPrefix(lines[tailLines-2], "line 99999 ") {
		t.Errorf("tail of %d lines ends with %q", len(lines), lines[len(lines)-1])
	}
	if got, want := c.warnings(), []string{"WARNING: CPU: 0 PID: 1 at net/core/dev.c:1"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
