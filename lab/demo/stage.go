// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/lab/meter"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/shaper"
)

const (
	device = topo.SenderDevice
	queues = 32
)

// How long cakectl may take to attach, and to detach.
const patience = 30 * time.Second

// stage is where it all happens: two network namespaces joined by a pair of devices, a meter at the
// receiver, and the file systems that cakectl uses.
type stage struct {
	out    io.Writer
	pair   *topo.Pair
	meter  *meter.Meter
	daemon *api.Client
	// cakectl is the path of the program.
	cakectl  string
	attached *attachment
}

// runStage performs the demo in this process's mount namespace.
func runStage(ctx context.Context, cakectl, recordingFile string, out io.Writer) (err error) {
	if err := requireOwnMounts(); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a /run of its own: %w", err)
	}
	s := &stage{out: out, cakectl: cakectl, daemon: api.NewClient(shaper.DefaultRunDir, device)}
	if s.pair, err = topo.NewPair("demo", queues); err != nil {
		return err
	}
	defer func() { err = also(err, s.pair.Close()) }()
	if err := s.pair.Sender.Do(mountSys); err != nil {
		return err
	}
	err = s.pair.Receiver.Do(func() error {
		receiver, err := netlink.LinkByName(topo.ReceiverDevice)
		if err != nil {
			return err
		}
		s.meter, err = meter.Attach(receiver, meterClasses())
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = also(err, s.pair.Receiver.Do(s.meter.Close)) }()
	defer func() { err = also(err, s.abandon()) }()
	recording, err := tell(ctx, s)
	if ctx.Err() != nil {
		return errSaid
	}
	if err != nil {
		return err
	}
	return recording.write(recordingFile)
}

// requireOwnMounts makes sure that what is mounted here is not seen where this process comes from.
func requireOwnMounts() error {
	var ours, parents unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/self/ns/mnt", &ours), unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()), &parents)); err != nil {
		return fmt.Errorf("compare mount namespaces: %w", err)
	}
	if ours.Ino == parents.Ino {
		return errNoOwnMounts
	}
	return nil
}

var errNoOwnMounts = errors.New("this part needs a mount namespace of its own")

// mountSys shows the devices of the thread's network namespace below /sys, and makes a place for
// pins there.
func mountSys() error {
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount a /sys of its own: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	return nil
}

// say prints an indented line.
func (s *stage) say(format string, args ...any) {
	line := fmt.Sprintf("   "+format, args...)
	fmt.Fprintln(s.out, strings.TrimRight(line, " "))
}

// command makes a command; start starts it.
func (s *stage) command(ctx context.Context, args ...string) *exec.Cmd {
	program := args[0]
	if program == "cakectl" {
		program = s.cakectl
	}
	cmd := exec.CommandContext(ctx, program, args[1:]...)
	// Ctrl-C goes to the demo, which ends what it started in good order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// start starts a command in the sender's namespace: a process is in that of the thread it comes from.
func (s *stage) start(cmd *exec.Cmd) error { return s.pair.Sender.Do(cmd.Start) }

// run shows a command, runs it, and returns what it printed.
func (s *stage) run(ctx context.Context, args ...string) (string, error) {
	s.say("$ %s", strings.Join(args, " "))
	return s.runQuietly(ctx, args...)
}

func (s *stage) runQuietly(ctx context.Context, args ...string) (string, error) {
	cmd := s.command(ctx, args...)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := s.start(cmd); err != nil {
		return "", fmt.Errorf("start %s: %w", args[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
	return output.String(), nil
}

// show prints lines of output.
func (s *stage) show(output string) {
	for line := range strings.Lines(strings.TrimRight(output, "\n")) {
		s.say("%s", strings.TrimSuffix(line, "\n"))
	}
}

// attachment is the cakectl that stays in the foreground.
type attachment struct {
	cmd    *exec.Cmd
	ready  chan struct{} // closed when it is attached
	exited chan struct{} // closed when err is its end
	err    error
}

// attach starts the cakectl of the foreground, and shows what it prints as long as it runs.
func (s *stage) attach(ctx context.Context, args ...string) error {
	s.say("$ %s", strings.Join(args, " "))
	// Not tied to ctx, which would end it by force: it has to detach.
	a := &attachment{ready: make(chan struct{}), exited: make(chan struct{})}
	a.cmd = s.command(context.WithoutCancel(ctx), args...)
	output, err := a.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	a.cmd.Stderr = a.cmd.Stdout
	if err := s.start(a.cmd); err != nil {
		return fmt.Errorf("start cakectl: %w", err)
	}
	s.attached = a
	go func() {
		defer close(a.exited)
		ready := false
		for lines := bufio.NewScanner(output); lines.Scan(); {
			s.say("%s", lines.Text())
			// The last thing it says before it is at work.
			if !ready && strings.Contains(lines.Text(), "Ctrl-C") {
				ready = true
				close(a.ready)
			}
		}
		a.err = a.cmd.Wait()
	}()
	select {
	case <-a.ready:
		return nil
	case <-a.exited:
		s.attached = nil
		return fmt.Errorf("cakectl attach ended at once: %w", errors.Join(a.err, ctx.Err()))
	case <-time.After(patience):
		return fmt.Errorf("cakectl has not attached after %v", patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// interrupt ends the cakectl of the foreground as Ctrl-C does.
func (s *stage) interrupt() error {
	a := s.attached
	s.attached = nil
	if err := a.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("interrupt cakectl: %w", err)
	}
	select {
	case <-a.exited:
		if a.err != nil {
			return fmt.Errorf("cakectl attach: %w", a.err)
		}
		return nil
	case <-time.After(patience):
		err := a.cmd.Process.Kill()
		<-a.exited
		return errors.Join(fmt.Errorf("cakectl has not ended %v after Ctrl-C", patience), err)
	}
}

// abandon ends what still runs when the demo broke off.
func (s *stage) abandon() error {
	if s.attached == nil {
		return nil
	}
	return s.interrupt()
}

// get fetches a page from the sender's namespace.
func (s *stage) get(ctx context.Context, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = s.pair.Sender.Do(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	if err != nil {
		return "", fmt.Errorf("get %s: %w", url, err)
	}
	return string(text), nil
}
