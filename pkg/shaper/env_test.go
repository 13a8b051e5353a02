// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/rates"
)

func TestRecordThatCannotBeWritten(t *testing.T) {
	env := Env{RunDir: t.TempDir()}
	if err := os.Mkdir(env.record("eth0"), 0o700); err != nil { // in its place
		t.Fatal(err)
	}
	if err := env.writeRecord(record{Spec: config.New("eth0", rates.Value{})}); err == nil || !strings.Contains(err.Error(), "write the record of eth0") {
		t.Errorf("got %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(env.RunDir, "*.new")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDamagedRecord(t *testing.T) {
	env := Env{RunDir: t.TempDir()}
	if err := os.WriteFile(env.record("eth0"), []byte(`{"version": 1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := env.readRecord("eth0"); err == nil || !strings.Contains(err.Error(), env.record("eth0")+" is damaged") {
		t.Errorf("got %v", err)
	}
}

// Pins that an attach has not made yet are not gone.
func TestProblemsWithoutPins(t *testing.T) {
	s := &Shaper{device: &netlink.Dummy{}}
	for hook, want := range map[loader.Hook]string{
		"":         "its attach is under way, or was cut short",
		loader.TCX: "the pinned program and maps are gone",
	} {
		s.record.Attachment.Hook = hook
		if problems, err := s.problems(); err != nil || len(problems) != 1 || problems[0] != want {
			t.Errorf("hook %q: got %q, %v, want %q", hook, problems, err, want)
		}
	}
}
