// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/shaper"
)

var many = flag.Int("many", 64, "devices of TestManyDevices")

// TestManyDevices is one serve with 64 devices of 64 queues each. An emulated machine takes many minutes
// for it, so it is no part of the lanes: make test-many.
func TestManyDevices(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("make test-many runs this in the VM")
	}
	const queues = 64
	devices := *many
	const patience = 45 * time.Minute
	testnet.NeedFQ(t)
	before := memory(t)
	names := make([]string, devices)
	config := "metrics: none\ndefaults: {keep: false, bandwidth: 1gbit}\ndevices:\n"
	for i := range devices {
		names[i] = fmt.Sprintf("many%d", i)
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues, attrs.Flags = names[i], queues, queues, net.FlagUp
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: names[i] + "p", PeerNumTxQueues: queues, PeerNumRxQueues: queues}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Fatal(err)
		}
		config += "  " + names[i] + ": {}\n"
	}
	path := filepath.Join(t.TempDir(), "cakectl.yaml")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	var log terminal
	serve := exec.Command("cakectl", "--log-level", "info", "serve", "-c", path)
	serve.Stdout, serve.Stderr = &log, &log
	start := time.Now()
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	defer func() {
		serve.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("serve: %v\n%s", err, &log)
		}
	}()
	enforcing := func() (n int) {
		for _, name := range names {
			status, err := api.NewClient(shaper.DefaultRunDir, name).Status(context.Background())
			if err == nil && status.Enforcing && status.Queues.Total == queues {
				n++
			}
		}
		return n
	}
	attached := func() int { return strings.Count(log.String(), "msg=attached ") }
	for n := 0; n < devices; n = attached() { // asking each of them would take its time from serve
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("serve ended: %v", err)
		case <-time.After(5 * time.Second):
		}
		if time.Since(start) > patience {
			t.Fatalf("%d of %d devices after %s\n%s", n, devices, patience, &log)
		}
		t.Logf("%d devices attached after %s", n, time.Since(start).Round(time.Second))
	}
	if n := enforcing(); n != devices {
		t.Errorf("%d of %d devices are enforcing\n%s", n, devices, &log)
	}
	t.Logf("all %d devices of %d queues attached after %s", devices, queues, time.Since(start).Round(time.Second))
	t.Logf("serve: %d KiB resident, %d KiB at most; the kernel took %d KiB more for devices and maps", field(t, serve.Process.Pid, "VmRSS"), field(t, serve.Process.Pid, "VmHWM"), before-memory(t)-field(t, serve.Process.Pid, "VmRSS"))

	start = time.Now()
	if out, err := exec.Command("cakectl", "set", names[devices-1], "--bandwidth", "500mbit").CombinedOutput(); err != nil {
		t.Errorf("set: %v: %s", err, out)
	}
	t.Logf("set one: %s", time.Since(start).Round(time.Millisecond))
	start = time.Now()
	out, err := exec.Command("cakectl", "status").Output()
	if err != nil || strings.Count(string(out), " yes") != devices || !strings.Contains(string(out), "500mbit") {
		t.Errorf("status: %v:\n%s", err, out)
	}
	t.Logf("status of all: %s", time.Since(start).Round(time.Millisecond))
}

// memory is what the machine has available, in KiB.
func memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes(t, string(text), "MemAvailable")
}

// field is one of a process's status file, in KiB.
func field(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes(t, string(text), name)
}

func kibibytes(t *testing.T, text, name string) int {
	t.Helper()
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s", name, text)
	return 0
}
