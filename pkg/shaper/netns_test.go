// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/rates"
)

// What belongs to a device of another network namespace is left alone, though its pins cannot be seen, as
// under ip netns exec. Once that namespace is gone it counts as gone too.
func TestRecordOfAnotherNetns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	env := Env{RunDir: t.TempDir(), BPFFS: t.TempDir() + "/cakectl", Log: slog.New(slog.DiscardHandler)}
	other := exec.Command("sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() {
		_ = other.Process.Kill() // it may have ended
		_ = other.Wait()
	}
	defer end()
	var netns unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", other.Process.Pid), &netns); err != nil {
		t.Fatal(err)
	}
	err := env.writeRecord(record{
		Version: recordVersion, Ifindex: 1, Netns: netns.Ino, Spec: config.New("lo", rates.Absolute(rates.Gbit)),
		Found: qdisc.Journal{Version: qdisc.JournalVersion, Device: "lo", Index: 1},
	})
	if err != nil {
		t.Fatal(err)
	}

	names, err := List(env)
	if err != nil || len(names) > 0 {
		t.Errorf("lists %q (%v), want nothing that is elsewhere", names, err)
	}
	way := fmt.Sprintf("nsenter --net=/proc/%d/ns/net", other.Process.Pid)
	if _, err := Open(env, "lo"); err == nil || !strings.Contains(err.Error(), way) {
		t.Errorf("Open: got %v, want the way there: %s", err, way)
	}
	if _, err := Plan(t.Context(), env, config.New("lo", rates.Absolute(rates.Gbit))); err == nil || !strings.Contains(err.Error(), way) {
		t.Errorf("Plan: got %v, want the way there: %s", err, way)
	}
	s, err := open(env, "lo")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if swept, err := s.sweepUp(t.Context()); swept || err == nil {
		t.Errorf("swept up: %t, %v", swept, err)
	}
	if _, err := env.readRecord("lo"); err != nil {
		t.Errorf("the record of the other namespace: %v", err)
	}

	end()
	if names, err := List(env); err != nil || len(names) != 1 {
		t.Errorf("lists %q (%v), want what is left of a namespace that is gone", names, err)
	}
	if swept, err := s.sweepUp(t.Context()); !swept || err != nil {
		t.Errorf("what is left of a namespace that is gone: swept up: %t, %v", swept, err)
	}
}
