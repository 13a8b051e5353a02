// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// lines checks that the text has a match for each expression, in that order.
func lines(t *testing.T, text string, expressions ...string) {
	t.Helper()
	rest := text
	for _, expression := range expressions {
		match := regexp.MustCompile(`(?m)` + expression).FindStringIndex(rest)
		if match == nil {
			t.Errorf("no %q in its place in the output:\n%s", expression, text)
			return
		}
		rest = rest[match[1]:]
	}
}

func TestRunsTestsOfSeveralPackages(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code, err := run(t.Context(), []string{
		"-lane", "newest", "-run", "TestFrames|TestReadsItsData|TestFails",
		"-test", "../guest", "-test", "./testdata/failing", "-test", "../wire",
	}, &stdout, &stderr)
	if err != nil || code != 1 {
		t.Errorf("exit status %d, %v, want 1: a test failed\n%s", code, err, stderr.String())
	}
	lines(t, stdout.String(),
		`^\?   \t\S+/internal/vm/guest\t\[no test files\]$`,
		`the file says: hello from testdata$`,
		`^--- PASS: TestReadsItsData`,
		`^--- FAIL: TestFails`,
		`^exit status 1$`,
		`^FAIL\t\S+/failing\t[\d.]+s$`,
		`^--- PASS: TestFrames`,
		`^ok  \t\S+/wire\t[\d.]+s$`,
		`^FAIL$`,
	)
	if strings.Contains(stdout.String(), "TestNotAskedFor") {
		t.Error("-run was not passed on")
	}
}

func TestRunsCommand(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code, err := run(t.Context(), []string{"-lane", "6.1", "--", "sh", "-c", "echo one; echo two >&2; exit 9"}, &stdout, &stderr)
	if err != nil || code != 9 || stdout.String() != "one\ntwo\n" {
		t.Errorf("exit status %d, %v, output %q\n%s", code, err, stdout.String(), stderr.String())
	}
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-lane", "6.1"}, {"-nonsense", "--", "true"}, {"-file", "relative=x", "--", "true"}, {"-file", "/guest", "--", "true"},
	} {
		if code, err := run(t.Context(), args, io.Discard, io.Discard); code != exitUsage || err == nil {
			t.Errorf("%q: exit status %d, %v", args, code, err)
		}
	}
	if code, err := run(t.Context(), []string{"-lane", "2.6", "--", "true"}, io.Discard, io.Discard); code != exitBroken || err == nil {
		t.Errorf("unknown lane: exit status %d, %v", code, err)
	}
	if code, err := run(t.Context(), []string{"-h"}, io.Discard, io.Discard); code != 0 || err != nil {
		t.Errorf("-h: exit status %d, %v", code, err)
	}
}

func TestParse(t *testing.T) {
	o, rest, err := parse([]string{
		"-lane", "6.12", "-smp", "4", "-virtio", "3", "-icount", "-timeout", "30s", "-out", "o",
		"-file", "/a=b=c", "-file", "/d=e", "-test", "./x", "-test", "./y", "--", "-test.short",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := o.config
	if c.Lane != "6.12" || c.SMP != 4 || c.VirtioQueues != 3 || !c.ICount || c.Timeout != 30*time.Second || c.OutDir != "o" ||
		len(c.Files) != 2 || c.Files["/a"] != "b=c" || !slices.Equal(o.packages, []string{"./x", "./y"}) || !slices.Equal(rest, []string{"-test.short"}) {
		t.Errorf("got %+v, arguments %q", o, rest)
	}
}
