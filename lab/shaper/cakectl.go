// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/rates"
)

const (
	cakectlReady = 10 * time.Second
	cakectlStop  = 5 * time.Second
)

// cakectl is the program itself, attached in the foreground as a user would.
type cakectl struct {
	target Target
	bpffs  string
	runDir string
	cmd    *exec.Cmd
	output bytes.Buffer
	exited chan error
}

func attachCakectl(ctx context.Context, t Target) (_ Shaped, err error) {
	c := &cakectl{
		target: t,
		bpffs:  filepath.Join(t.StateDir, "bpf"),
		runDir: filepath.Join(t.StateDir, "run"),
		exited: make(chan error, 1),
	}
	// A BPF file system of its own, mounted before the process has its own mounts (`ip netns exec`
	// gives it some): what is pinned there stays when the process is killed.
	if err := os.Mkdir(c.bpffs, 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("bpf", c.bpffs, "bpf", 0, "mode=0700"); err != nil {
		return nil, fmt.Errorf("mount a BPF file system at %s: %w", c.bpffs, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	// Not tied to ctx, which would end it by force: Close has to see it detach.
	args := []string{"attach", t.Device, "--bandwidth", bits(t.Rate), "--diffserv", t.Diffserv, "--metrics", "none"}
	if t.Framing != (Framing{}) {
		args = append(args, "--overhead", strconv.Itoa(t.Framing.Overhead))
	}
	if t.Framing.ATM {
		args = append(args, "--atm")
	}
	c.cmd = c.command(context.WithoutCancel(ctx), args...)
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start cakectl: %w", err)
	}
	go func() { c.exited <- c.cmd.Wait() }()
	return c, c.waitReady(ctx)
}

// attachUncapped puts the limits of super-packets back, which cakectl has lowered.
func attachUncapped(ctx context.Context, t Target) (Shaped, error) {
	var before netlink.LinkAttrs
	limits := func(f func(netlink.Link) error) error {
		return t.Namespace.Do(func() error {
			link, err := netlink.LinkByName(t.Device)
			if err != nil {
				return fmt.Errorf("find %s: %w", t.Device, err)
			}
			return f(link)
		})
	}
	err := limits(func(link netlink.Link) error { before = *link.Attrs(); return nil })
	if err != nil {
		return nil, err
	}
	c, err := attachCakectl(ctx, t)
	if err != nil {
		return nil, err
	}
	err = limits(func(link netlink.Link) error {
		return errors.Join(
			netlink.LinkSetGSOMaxSize(link, int(before.GSOMaxSize)),
			netlink.LinkSetGSOMaxSegs(link, int(before.GSOMaxSegs)),
			netlink.LinkSetGSOIPv4MaxSize(link, int(before.GSOIPv4MaxSize)))
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("uncap %s: %w", t.Device, err), c.Close())
	}
	return c, nil
}

func bits(rate rates.Rate) string { return strconv.FormatUint(uint64(rate), 10) + "bit" }

func (c *cakectl) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"netns", "exec", c.target.Namespace.Name, c.target.Cakectl, "--bpffs", filepath.Join(c.bpffs, "cakectl"), "--run-dir", c.runDir}, args...)
	return exec.CommandContext(ctx, "ip", args...)
}

// waitReady waits until status says that the rate is enforced.
func (c *cakectl) waitReady(ctx context.Context) error {
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-c.exited:
			c.exited <- err
			return errors.New("cakectl attach ended before it was enforcing") // Close says why
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		status, err := c.status(ctx)
		if err == nil && status.Enforcing {
			return nil
		}
		if time.Since(start) > cakectlReady {
			return fmt.Errorf("cakectl is not enforcing after %v: %w (reason: %s)", cakectlReady, err, status.Reason)
		}
	}
}

func (c *cakectl) status(ctx context.Context) (api.Status, error) {
	var status api.Status
	cmd := c.command(ctx, "status", c.target.Device, "-o", "json")
	text, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && len(text) > 0) {
		return status, fmt.Errorf("cakectl status: %w", err)
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return status, fmt.Errorf("cakectl status: %w", err)
	}
	return status, nil
}

func (c *cakectl) SetRate(ctx context.Context, rate rates.Rate) error {
	output, err := c.command(ctx, "set", c.target.Device, "--bandwidth", bits(rate)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cakectl set: %w: %s", err, bytes.TrimSpace(output))
	}
	return nil
}

func (c *cakectl) Details(ctx context.Context) (string, error) {
	text, err := c.command(ctx, "status", c.target.Device, "-o", "json").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cakectl status: %w: %s", err, bytes.TrimSpace(text))
	}
	tree, err := qdiscs(ctx, c.target)
	return string(text) + tree, err
}

func (c *cakectl) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill cakectl: %w", err)
	}
	c.exited <- <-c.exited
	return nil
}

// Close ends the process as Ctrl-C does, and says so if it was not well when it ended.
func (c *cakectl) Close() error {
	var errs []error
	if c.cmd != nil && c.cmd.Process != nil {
		errs = append(errs, c.stop())
	}
	return errors.Join(append(errs, unix.Unmount(c.bpffs, unix.MNT_DETACH))...)
}

func (c *cakectl) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGINT) // it may have ended by itself: then its status tells
	select {
	case err := <-c.exited:
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			return nil // by Kill
		}
		if err != nil {
			return fmt.Errorf("cakectl attach: %w: %s", err, bytes.TrimSpace(c.output.Bytes()))
		}
		return nil
	case <-time.After(cakectlStop):
		// For the stacks of its goroutines.
		err := c.cmd.Process.Signal(syscall.SIGQUIT)
		<-c.exited
		return errors.Join(fmt.Errorf("cakectl attach has not ended %v after SIGINT: %s", cakectlStop, bytes.TrimSpace(c.output.Bytes())), err)
	}
}
