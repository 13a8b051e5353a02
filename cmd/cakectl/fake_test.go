// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// fakeHost stands for package shaper on a kernel with fq. What it models, each anchored to a real
// kernel by testdata/vm/attach.txtar and adopt.txtar:
//   - Open is ErrNotAttached before Attach and after Detach, and not after Close: devices outlive
//     their process.
//   - What is attached is found by the name that it had then, though it has another now (pkg/shaper
//     TestVMAdoptsByItsOldName).
//   - Attach of an attached device adopts it and applies the spec as a change.
//   - Set checks the change with the Spec it has, and changes nothing if that fails.
//   - After Detach, whoever did it, Set is ErrNotAttached.
//   - A device that the kernel does not have cannot be attached, and Await ends when it appears
//     (testdata/vm/serve.txtar).
//   - Run lasts until its context ends and returns nil then.
type fakeHost struct {
	mu       sync.Mutex
	attached map[string]config.Spec
	calls    []string

	// What to do wrong.
	attachErr, detachErr, runErr, statusErr error
	notEnforcing                            string
	foresight                               api.Foresight
	// controller is the process that has the lock of the device's controller (testdata/vm/keep.txtar).
	controller int
	// renamed are devices that have another name now than when they were attached, by that.
	renamed map[string]string
	// missing are devices that the kernel does not have until the channel is closed.
	missing map[string]chan struct{}
	// slow are devices whose kernel side does not answer until the channel is closed.
	slow map[string]chan struct{}
	// attaching, if set, runs in the middle of an attach.
	attaching func(ctx context.Context) error
}

func newFakeHost() *fakeHost { return &fakeHost{attached: map[string]config.Spec{}} }

func (h *fakeHost) call(format string, args ...any) {
	h.calls = append(h.calls, fmt.Sprintf(format, args...))
}

// called lists what was called so far.
func (h *fakeHost) called() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *fakeHost) Attach(ctx context.Context, spec config.Spec) (daemon.Shaped, error) {
	if h.attaching != nil {
		if err := h.attaching(ctx); err != nil {
			return nil, fmt.Errorf("attach %s: put mq and fq in place: %w", spec.Device, err)
		}
	}
	h.wait(spec.Device)
	if h.isMissing(spec.Device) {
		_, err := netlink.LinkByName(spec.Device)
		return nil, fmt.Errorf("find %s: %w", spec.Device, err)
	}
	spec.Device, _ = h.Recorded(spec.Device)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.attachErr != nil {
		return nil, h.attachErr
	}
	found, adopt := h.attached[spec.Device]
	if adopt {
		adopted, err := found.Apply(config.Change{Bandwidth: &spec.Bandwidth, Tins: spec.Tins, Split: &spec.Split, RTT: &spec.RTT})
		if err != nil {
			return nil, err
		}
		spec = adopted
	}
	h.call("attach %s adopt=%t", spec.Device, adopt)
	h.attached[spec.Device] = spec
	return &fakeDevice{h, spec.Device, adopt}, nil
}

// wait lasts while a device is slow.
func (h *fakeHost) wait(device string) {
	h.mu.Lock()
	slow := h.slow[device]
	h.mu.Unlock()
	if slow != nil {
		<-slow
	}
}

func (h *fakeHost) isMissing(device string) bool {
	select {
	case <-h.missing[device]:
		return false
	default:
		return h.missing[device] != nil
	}
}

func (h *fakeHost) Await(ctx context.Context, device string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.missing[device]:
		return nil
	}
}

func (h *fakeHost) Plan(context.Context, config.Spec) (shaper.Preview, error) {
	return shaper.Preview{Found: "as it is", Steps: []string{"do something"}}, nil
}

func (h *fakeHost) Open(device string) (daemon.Shaped, error) {
	device, _ = h.Recorded(device)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.attached[device]; !ok {
		return nil, fmt.Errorf("%s: %w", device, shaper.ErrNotAttached)
	}
	return &fakeDevice{h, device, false}, nil
}

func (h *fakeHost) List() ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var devices []string
	for device := range h.attached {
		devices = append(devices, device)
	}
	slices.Sort(devices)
	return devices, nil
}

func (h *fakeHost) Recorded(device string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if recorded, ok := h.renamed[device]; ok {
		return recorded, nil
	}
	return device, nil
}

func (h *fakeHost) Stopped(string) int { return 0 }

func (h *fakeHost) Controller(string) int { return h.controller }

type fakeDevice struct {
	host    *fakeHost
	name    string
	adopted bool
}

func (d *fakeDevice) Adopted() bool { return d.adopted }

func (d *fakeDevice) OnReaction(reacted func(time.Duration)) { reacted(time.Millisecond) }

func (d *fakeDevice) Spec() config.Spec {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	return d.host.attached[d.name]
}

func (d *fakeDevice) Run(ctx context.Context) error {
	if d.host.runErr != nil {
		return d.host.runErr
	}
	<-ctx.Done()
	return nil
}

func (d *fakeDevice) Set(_ context.Context, change config.Change) (api.Changed, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	spec, ok := d.host.attached[d.name]
	if !ok {
		return api.Changed{}, fmt.Errorf("change %s: %w", d.name, shaper.ErrNotAttached)
	}
	spec, err := spec.Apply(change)
	if err != nil {
		return api.Changed{}, err
	}
	d.host.call("set %s", d.name)
	d.host.attached[d.name] = spec
	return api.Changed{RateWrites: 3, Spec: spec}, nil
}

func (d *fakeDevice) Status(context.Context) (api.Status, error) {
	d.host.wait(d.name)
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if d.host.statusErr != nil {
		return api.Status{}, d.host.statusErr
	}
	spec := d.host.attached[d.name]
	cfg, err := spec.Resolve(0)
	if err != nil {
		return api.Status{}, err
	}
	status := api.Status{
		Device: d.name, Enforcing: d.host.notEnforcing == "", Reason: d.host.notEnforcing,
		Attach: "tcx", RootQdisc: "mq", Bandwidth: api.BitsPerSec(cfg.Bandwidth),
		Diffserv: string(spec.Preset), Split: string(spec.Split), Isolation: string(spec.Isolation), Queues: api.Queues{Total: 4}, Daemon: 4711,
	}
	for _, tin := range cfg.Tins {
		status.Tins = append(status.Tins, api.Tin{
			Name: tin.Name, Rate: api.BitsPerSec(tin.Rate), Ceil: api.BitsPerSec(min(tin.Ceil, cfg.Bandwidth)),
		})
	}
	return status, nil
}

func (d *fakeDevice) Detach(context.Context) error {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	d.host.call("detach %s", d.name)
	if d.host.detachErr != nil {
		return d.host.detachErr
	}
	delete(d.host.attached, d.name)
	return nil
}

func (d *fakeDevice) CheckQueues(context.Context, time.Duration) (api.Foresight, error) {
	return d.host.foresight, nil
}

func (d *fakeDevice) Close() error { return nil }

// spec is what a device is shaped to.
func (h *fakeHost) spec(device string) config.Spec {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attached[device]
}

// attachSpec makes a device attached by a process that is gone.
func (h *fakeHost) attachSpec(device string, bandwidth rates.Rate) {
	h.attached[device] = config.New(device, rates.Absolute(bandwidth))
}

// terminal collects what a command prints, while it runs.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// command is a command that runs, or has run.
type command struct {
	stdout, stderr terminal
	signal         context.CancelCauseFunc
	exit           chan int
}

// shell runs commands that share a host and a run directory.
type shell struct {
	t      *testing.T
	host   *fakeHost
	runDir string
}

func newShell(t *testing.T) *shell {
	return &shell{t: t, host: newFakeHost(), runDir: filepath.Join(shortDir(t), "run")}
}

// start runs a command in the background until it ends or the test does.
func (s *shell) start(args ...string) *command {
	s.t.Helper()
	c := &command{exit: make(chan int, 1)}
	ctx, cancel := context.WithCancelCause(context.Background())
	c.signal = cancel
	done := make(chan struct{})
	go func() {
		defer close(done)
		args := append([]string{"--run-dir", s.runDir, "--log-level", "error"}, args...)
		c.exit <- run(ctx, args, &c.stdout, &c.stderr, func(shaper.Env) daemon.Shapers { return s.host })
	}()
	s.t.Cleanup(func() { cancel(nil); <-done })
	return c
}

// ends waits for a command, which has to end with an exit status.
func (s *shell) ends(c *command, exit int) {
	s.t.Helper()
	if got := <-c.exit; got != exit {
		s.t.Errorf("exit status %d, want %d\nstdout:\n%sstderr:\n%s", got, exit, &c.stdout, &c.stderr)
	}
}

// run runs a command to its end and returns what it printed.
func (s *shell) run(exit int, args ...string) (stdout, stderr string) {
	s.t.Helper()
	c := s.start(args...)
	s.ends(c, exit)
	return c.stdout.String(), c.stderr.String()
}

// stdout runs a command to its end and returns what it printed to standard output.
func (s *shell) stdout(exit int, args ...string) string {
	s.t.Helper()
	stdout, _ := s.run(exit, args...)
	return stdout
}

// attach runs an attach of lo and waits until it serves.
func (s *shell) attach(args ...string) *command {
	s.t.Helper()
	c := s.start(append([]string{"attach", "lo", "--metrics", "127.0.0.1:0"}, args...)...)
	for !strings.Contains(c.stdout.String(), "Ctrl-C") {
		select {
		case exit := <-c.exit:
			s.t.Fatalf("attach ended with %d\nstdout:\n%sstderr:\n%s", exit, &c.stdout, &c.stderr)
		case <-time.After(time.Millisecond):
		}
	}
	return c
}
