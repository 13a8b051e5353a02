// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/rates"
)

// file writes a configuration file of devices, a line each, and returns its path.
func (s *shell) file(devices ...string) string {
	s.t.Helper()
	path := filepath.Join(filepath.Dir(s.runDir), "cakectl.yaml")
	text := "metrics: 127.0.0.1:0\ndevices:\n  " + strings.Join(devices, "\n  ") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// serve runs a serve and waits until it has tried every device.
func (s *shell) serve(devices ...string) *command {
	s.t.Helper()
	c := s.start("serve", "-c", s.file(devices...))
	s.prints(c, "serving ")
	return c
}

// prints waits until a command has printed something.
func (s *shell) prints(c *command, text string) {
	s.t.Helper()
	for !strings.Contains(c.stdout.String(), text) {
		select {
		case exit := <-c.exit:
			s.t.Fatalf("ended with %d before it printed %q\nstdout:\n%sstderr:\n%s", exit, text, &c.stdout, &c.stderr)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestServe(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := newShell(t)
	s.host.missing = map[string]chan struct{}{"late0": make(chan struct{})}
	serve := s.serve("dev0: {bandwidth: 1gbit}", "dev1: {bandwidth: 2gbit, keep: false}", "late0: {bandwidth: 3gbit}")
	wantContains(t, serve.stdout.String(), "dev0: attached\n", "dev1: attached\n", "late0: waiting: there is no such device yet\n", "serving 3 devices")

	// Each device is there as if it had a daemon of its own.
	stdout, _ := s.run(exitDone, "status", "dev0")
	wantContains(t, stdout, "dev0: 1gbit", "enforcing: yes")
	s.run(exitDone, "set", "dev0", "--bandwidth", "500mbit", "--tin", "bulk=ceil:10%")
	stdout, _ = s.run(exitNotEnforcing, "status", "late0")
	wantContains(t, stdout, "late0: 3gbit, diffserv4\n", "enforcing: NO: not attached: there is no such device yet")
	_, stderr := s.run(exitNotAttached, "set", "late0", "--bandwidth", "1gbit")
	wantContains(t, stderr, fmt.Sprintf("cakectl: change late0: there is no such device yet, and process %d waits for it: change the file, and cakectl apply it\n", os.Getpid()))
	stdout, _ = s.run(exitNotEnforcing, "status")
	wantContains(t, stdout, "dev0 ", "dev1 ", "late0 ")
	wantContains(t, scrape(t, serve),
		`cakectl_interface_enforcing{device="dev0"} 1`, `cakectl_interface_enforcing{device="dev1"} 1`,
		`cakectl_interface_enforcing{device="late0"} 0`,
		`cakectl_rate_changes_total{device="dev0",result="ok",source="file"} 1`,
		`cakectl_rate_changes_total{device="dev0",result="ok",source="api"} 1`)

	// The device that was waited for.
	close(s.host.missing["late0"])
	for exit := exitNotEnforcing; exit != exitDone; exit = <-s.start("status", "late0").exit {
	}

	// Another file: what set has changed is as the file says again.
	stdout, _ = s.run(exitDone, "apply", s.file("dev0: {bandwidth: 1gbit}", "dev2: {bandwidth: 4gbit}", "late0: {bandwidth: 3gbit}"))
	wantContains(t, stdout, "dev0: changed: bandwidth 500mbit -> 1gbit, bulk ceil 10% -> none; effective rates written: 3\n", "dev1: detached, and as it was found\n", "dev2: attached\n", "late0: unchanged\n")
	if spec := s.host.spec("dev0"); spec.Bandwidth != rates.Absolute(rates.Gbit) || len(spec.Tins) != 0 {
		t.Errorf("dev0 is %+v, want it as in the file", spec)
	}
	s.run(exitInvalid, "status", "dev1") // there is no such device

	// By hand.
	stdout, _ = s.run(exitDone, "detach", "dev2")
	wantContains(t, stdout, "dev2: detached, and as it was found\n")
	stdout, _ = s.run(exitDone, "apply", filepath.Join(filepath.Dir(s.runDir), "cakectl.yaml"))
	wantContains(t, stdout, "dev0: unchanged\n", "dev2: attached\n")
	s.run(exitDone, "detach", "dev2")
	stdout, _ = s.run(exitDone, "attach", "lo", "--bandwidth", "5gbit")
	wantContains(t, stdout, "lo: attached\n", "lo: 5gbit, diffserv4", "lo: cakectl serve, process 4711, serves it and its metrics\n")

	// The file keeps its devices when serve ends; what came by hand without --keep is detached.
	serve.signal(interrupted{syscall.SIGTERM})
	s.ends(serve, exitDone)
	left, err := s.host.List()
	if diff := cmp.Diff([]string{"dev0", "late0"}, left); diff != "" || err != nil {
		t.Errorf("left attached (-want +got):\n%s%v", diff, err)
	}
	s.wantLeft()
}

// What an earlier serve left is adopted, unless the file has it no more.
func TestServeAdopts(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("dev0", rates.Gbit)
	ceil := rates.Absolute(10 * rates.Mbit)
	changed := s.host.attached["dev0"]
	changed.Tins = []config.TinOverride{{Name: "bulk", Ceil: &ceil}} // by set, and not in the file
	s.host.attached["dev0"] = changed
	s.host.attachSpec("old0", rates.Gbit)
	s.host.attachSpec("hand0", rates.Gbit)
	old := s.host.attached["old0"]
	old.FromFile = true
	s.host.attached["old0"] = old
	serve := s.serve("dev0: {bandwidth: 2gbit}")
	wantContains(t, serve.stdout.String(), "dev0: attached\n", "old0: detached, and as it was found\n")
	if got := s.host.spec("dev0"); got.Bandwidth != rates.Absolute(2*rates.Gbit) || len(got.Tins) > 0 {
		t.Errorf("dev0 is %+v, want what the file says", got)
	}
	stdout, _ := s.run(exitDone, "status")
	wantContains(t, stdout, "dev0 ", "hand0 ")
	_, stderr := s.run(exitFailed, "serve", "-c", s.file("dev0: {bandwidth: 2gbit}"))
	wantContains(t, stderr, "cakectl: serve: another cakectl serve is running: hand it the file with cakectl apply\n")
}

// While it is adopted, a device is told of as the kernel has it.
func TestServeTellsOfWhatItAdopts(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("dev0", rates.Gbit)
	stuck := make(chan struct{})
	s.host.attaching = func(context.Context) error { <-stuck; return nil }
	serve := s.start("serve", "-c", s.file("dev0: {bandwidth: 2gbit}", "new0: {bandwidth: 2gbit}"))
	s.prints(serve, "metrics on ")
	for device, want := range map[string]api.Status{
		"dev0": {Device: "dev0", Enforcing: true, Bandwidth: api.BitsPerSec(rates.Gbit)},
		"new0": {Device: "new0", Reason: "not attached: it is being attached", Bandwidth: api.BitsPerSec(2 * rates.Gbit)},
	} {
		got, err := api.NewClient(s.runDir, device).Status(t.Context())
		for ; err != nil; got, err = api.NewClient(s.runDir, device).Status(t.Context()) { // no daemon yet
			time.Sleep(time.Millisecond)
		}
		got = api.Status{Device: got.Device, Enforcing: got.Enforcing, Reason: got.Reason, Bandwidth: got.Bandwidth}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("status of %s (-want +got):\n%s", device, diff)
		}
	}
	close(stuck)
	s.prints(serve, "serving 2 devices")
	serve.signal(interrupted{syscall.SIGTERM})
	s.ends(serve, exitDone)
}

// A device that is waited for was not touched: nobody says that it is as it was found.
func TestServeGivesUpWaiting(t *testing.T) {
	s := newShell(t)
	never := make(chan struct{})
	s.host.missing = map[string]chan struct{}{"late0": never, "late1": never}
	s.serve("late0: {bandwidth: 1gbit}", "late1: {bandwidth: 1gbit}", "dev0: {bandwidth: 1gbit}")
	stdout := s.stdout(exitDone, "apply", s.file("late0: {bandwidth: 1gbit}", "dev0: {bandwidth: 1gbit}"))
	if want := "dev0: unchanged\nlate0: waiting: there is no such device yet\nlate1: not waited for any more\n"; stdout != want {
		t.Errorf("got %q, want %q", stdout, want)
	}
	if got, want := s.stdout(exitDone, "detach", "late0"), "late0: not waited for any more; there is no such device\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := s.stdout(exitDone, "detach", "dev0"), "dev0: detached, and as it was found\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A serve that has to end while it is adopting detaches what is not to be kept all the same.
func TestServeEndsWhileItAdopts(t *testing.T) {
	s := newShell(t)
	s.host.attachSpec("dev0", rates.Gbit)
	s.host.attachSpec("dev1", rates.Gbit)
	adopting := make(chan struct{}, 2)
	s.host.attaching = func(ctx context.Context) error {
		adopting <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	serve := s.start("serve", "-c", s.file("dev0: {bandwidth: 2gbit}", "dev1: {bandwidth: 2gbit, keep: false}"))
	<-adopting
	<-adopting
	serve.signal(interrupted{syscall.SIGTERM})
	s.ends(serve, exitDone)
	left, err := s.host.List()
	if diff := cmp.Diff([]string{"dev0"}, left); diff != "" || err != nil {
		t.Errorf("left attached (-want +got):\n%s%v", diff, err)
	}
}

// A device that is renamed, and then is in the file by its new name, is the same one: it is not detached
// meanwhile.
func TestServeRenamed(t *testing.T) {
	s := newShell(t)
	serve := s.serve("dev0: {bandwidth: 1gbit}")
	s.host.mu.Lock()
	s.host.renamed = map[string]string{"new0": "dev0"}
	s.host.mu.Unlock()
	stdout, _ := s.run(exitDone, "apply", s.file("new0: {bandwidth: 2gbit}"))
	wantContains(t, stdout, "new0: changed")
	if spec := s.host.spec("dev0"); spec.Bandwidth != rates.Absolute(2*rates.Gbit) {
		t.Errorf("it has %+v", spec)
	}
	if calls := s.host.called(); slices.Contains(calls, "detach dev0") {
		t.Errorf("it was detached: %q", calls)
	}
	stdout, _ = s.run(exitDone, "apply", s.file("new0: {bandwidth: 2gbit}"))
	wantContains(t, stdout, "new0: unchanged")
	if got := strings.Count(s.stdout(exitDone, "status"), "dev0 "); got != 1 {
		t.Errorf("the status has it %d times", got)
	}
	serve.signal(interrupted{syscall.SIGTERM})
	s.ends(serve, exitDone)

	// A serve that begins after the rename keeps it by its new name.
	s.serve("new0: {bandwidth: 2gbit}")
	if status := s.stdout(exitDone, "status"); strings.Contains(status, "new0 ") || !strings.Contains(status, "dev0 ") {
		t.Errorf("the status has it twice, or not by the name it has on record:\n%s", status)
	}
}

func TestReload(t *testing.T) {
	s := newShell(t)
	serve := s.serve("dev0: {bandwidth: 1gbit}")
	hangup := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	s.file("dev0: {bandwidth: 2gbit}", "dev1: {bandwidth: 1gbit}")
	hangup()
	s.prints(serve, "dev0: changed: bandwidth 1gbit -> 2gbit; effective rates written: 3\ndev1: attached\nread "+filepath.Join(filepath.Dir(s.runDir), "cakectl.yaml")+" again: 1 attached, 1 changed\n")
	s.file("dev0: {bandwidth: 2gbps, rtt: 20}")
	hangup()
	for !strings.Contains(serve.stderr.String(), "not reloaded; everything stays as it is") {
		time.Sleep(time.Millisecond)
	}
	wantContains(t, serve.stderr.String(), "cakectl.yaml:3:21: bandwidth", "cakectl.yaml:3:33: rtt", "mistakes=2")
	wantContains(t, scrape(t, serve), "cakectl_config_last_reload_successful 0", `cakectl_interface_enforcing{device="dev1"} 1`)
	s.file("dev0: {bandwidth: 2gbit}")
	hangup()
	s.prints(serve, "dev0: unchanged\ndev1: detached, and as it was found\n")
	s.prints(serve, "again: 1 unchanged, 1 detached\n")
	s.file("dev0: {bandwidth: 2gbit, keep: false, on_drift: repair}") // the latter is the default
	hangup()
	s.prints(serve, "dev0: changed: keep true -> false; effective rates written: 0\n")
	hangup()
	s.prints(serve, "again: 1 unchanged\n")
	wantContains(t, scrape(t, serve), "cakectl_config_last_reload_successful 1")
}

// A device that cannot be attached is told of, tried again, and no trouble of the others.
func TestServeFailures(t *testing.T) {
	s := newShell(t)
	s.host.attachErr = fmt.Errorf("attach dev0: put mq and fq in place: operation not supported")
	serve := s.serve("dev0: {bandwidth: 1gbit}")
	wantContains(t, serve.stdout.String(), "dev0: failed: attach dev0: put mq and fq in place: operation not supported\n", "serving 1 device")
	s.host.mu.Lock()
	s.host.attachErr = nil
	s.host.mu.Unlock()
	stdout, _ := s.run(exitDone, "apply", s.file("dev0: {bandwidth: 1gbit}"))
	wantContains(t, stdout, "dev0: attached\n")
	stdout, stderr := s.run(exitFailed, "apply", s.file("dev0: {bandwidth: 1gbit, diffserv: besteffort}", "dev1: {bandwidth: 1gbit}"))
	wantContains(t, stdout, "dev0: not changed, and shaped as before: dev0 is attached with diffserv4", "dev1: attached\n")
	wantContains(t, stderr, "1 device failed\n")
}

func TestApplyWithoutServe(t *testing.T) {
	s := newShell(t)
	path := s.file("dev0: {bandwidth: 1gbit}")
	_, stderr := s.run(exitFailed, "apply", path)
	wantContains(t, stderr, "no cakectl serve is running: start it with cakectl serve -c "+path+"\n")
	_, stderr = s.run(exitInvalid, "apply", s.file("dev0: {bandwidth: 0}"))
	wantContains(t, stderr, "cakectl.yaml:3:21: bandwidth")
}

// 64 devices, one of which does not answer: the others are attached, changed, read and scraped.
func TestSlowDeviceHoldsUpNoOther(t *testing.T) {
	s := newShell(t)
	stuck := make(chan struct{})
	defer close(stuck)
	s.host.slow = map[string]chan struct{}{"dev7": stuck}
	var devices []string
	for i := range 64 {
		devices = append(devices, fmt.Sprintf("dev%d: {bandwidth: 1gbit}", i))
	}
	serve := s.start("serve", "-c", s.file(devices...))
	s.prints(serve, "metrics on ")
	for i := range 64 {
		if i == 7 {
			continue
		}
		device := fmt.Sprintf("dev%d", i)
		for { // until it is attached
			if status, err := api.NewClient(s.runDir, device).Status(t.Context()); err == nil && status.Enforcing {
				break
			}
			time.Sleep(time.Millisecond)
		}
		s.run(exitDone, "set", device, "--bandwidth", "2gbit")
	}
	metrics := scrape(t, serve)
	if got := strings.Count(metrics, "\ncakectl_interface_enforcing{"); got != 64 {
		t.Errorf("scraped %d devices, want 64", got)
	}
	wantContains(t, metrics, `cakectl_interface_enforcing{device="dev7"} 0`, `cakectl_interface_enforcing{device="dev63"} 1`)
}
