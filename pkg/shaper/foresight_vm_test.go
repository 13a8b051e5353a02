// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/cakectl/cakectl/internal/testnet"
)

// TestVMCheckQueues changes the XPS map of a device that is shaped, which the kernel does not tell
// anybody, and lets the check find that.
func TestVMCheckQueues(t *testing.T) {
	const queues, sockets = 4, 20
	env, _ := newEnv(t, queues)
	s, err := Attach(t.Context(), env, spec("100mbit"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer s.Detach(t.Context())
	send := func() {
		for i := range sockets {
			conn, err := net.Dial("udp", net.JoinHostPort(testnet.PeerAddress, strconv.Itoa(1000+i)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write([]byte("packet")); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
	}
	// counted is what a check sees of one packet from each of the sockets.
	counted := func() (matched, mismatched uint64) {
		before, check, err := s.beginQueueCheck(t.Context(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		defer check.Close()
		send()
		after, err := s.datapath.Foresight()
		if err != nil {
			t.Fatal(err)
		}
		for by := range after.Matched {
			matched += after.Matched[by] - before.Matched[by]
			mismatched += after.Mismatched[by] - before.Mismatched[by]
		}
		return matched, mismatched
	}
	if matched, mismatched := counted(); matched != sockets || mismatched != 0 {
		t.Errorf("%d packets as foreseen and %d others, want %d and none", matched, mismatched, sockets)
	}
	path := filepath.Join(testnet.Sysfs(t), testnet.Device, "queues/tx-3/xps_cpus")
	if err := os.WriteFile(path, fmt.Appendf(nil, "%x", 1<<runtime.NumCPU()-1), 0); err != nil {
		t.Fatal(err)
	}
	// Where the hash says queue 3 anyway, nobody is surprised.
	matched, mismatched := counted()
	if matched+mismatched != sockets || mismatched < sockets/4 {
		t.Errorf("with XPS changed: %d packets as foreseen and %d others, want about 3/4 of %d to be others", matched, mismatched, sockets)
	}
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := status.Foresight.Mismatched["hash"], mismatched; got != want {
		t.Errorf("status tells %d mismatches by the hash, want %d", got, want)
	}
}
