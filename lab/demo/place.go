// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/vm"
	"github.com/cakectl/cakectl/lab/topo"
)

// Paths in the virtual machine.
const (
	guestDemo      = "/usr/local/bin/demo"
	guestCakectl   = "/usr/local/bin/cakectl"
	guestRecording = "/out/" + recordingFile
)

const recordingFile = "recording.json"

// vmTimeout bounds the virtual machine; it is done in a minute or two.
const vmTimeout = 8 * time.Minute

// lacking finds out by trying what keeps this machine from showing it natively; "" is nothing.
func lacking() string {
	if os.Geteuid() != 0 {
		return "this process is not root"
	}
	n, err := topo.NewNamespace(fmt.Sprintf("cakectl-demo-%d", os.Getpid()))
	if err != nil {
		return err.Error()
	}
	err = n.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.QdiscAdd(netlink.NewFq(netlink.QdiscAttrs{
			LinkIndex: lo.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		}))
	})
	release := kernelRelease()
	switch closeErr := n.Close(); {
	case errors.Is(err, unix.ENOENT):
		return fmt.Sprintf("this kernel, %s, has no sch_fq", release)
	case err != nil:
		return fmt.Sprintf("this kernel, %s, gives no fq: %v", release, err)
	case closeErr != nil:
		return closeErr.Error()
	}
	return ""
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// natively performs on this machine.
func natively(ctx context.Context, dir string, stdout io.Writer) (recording, error) {
	fmt.Fprintf(stdout, "Where: on this machine, whose kernel, %s, has sch_fq; in namespaces of its own.\n", kernelRelease())
	cakectl := filepath.Join(dir, "cakectl")
	if err := build(ctx, "./cmd/cakectl", cakectl, stdout); err != nil {
		return recording{}, err
	}
	file := filepath.Join(dir, recordingFile)
	if err := perform(ctx, cakectl, file, stdout); err != nil {
		return recording{}, err
	}
	return readRecording(file)
}

// stageEnd is how long an interrupted stage may take to leave everything as it was.
const stageEnd = 20 * time.Second

// perform runs the stage in a mount namespace of its own: it has a /run and a /sys for itself, and
// leaves nothing behind in those of the machine.
func perform(ctx context.Context, cakectl, recording string, stdout io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, "-part", partStage, "-cakectl", cakectl, "-recording", recording)
	cmd.Stdout, cmd.Stderr = stdout, stdout
	// In a process group of its own, Ctrl-C reaches it by way of this process and once.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stageEnd
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return errSaid
	}
	return err
}

// virtually performs in a virtual machine.
func virtually(ctx context.Context, lane, reason, dir string, stdout io.Writer) (recording, error) {
	fmt.Fprintf(stdout, "Where: in a virtual machine: %s.\n", reason)
	cakectl, demo := filepath.Join(dir, "cakectl"), filepath.Join(dir, "demo")
	if err := build(ctx, "./cmd/cakectl", cakectl, stdout); err != nil {
		return recording{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return recording{}, err
	}
	if static, err := isStatic(self); err != nil {
		return recording{}, err
	} else if static {
		demo = self
	} else if err := build(ctx, "./lab/demo", demo, stdout); err != nil {
		return recording{}, err
	}
	fmt.Fprintln(stdout, "  booting a Debian kernel, which is fetched the first time ...")
	result, err := vm.Run(ctx, vm.Config{
		Lane:    lane,
		ICount:  true,
		Files:   map[string]string{guestDemo: demo, guestCakectl: cakectl},
		Steps:   []vm.Step{{Command: []string{guestDemo, "-part", partPerform, "-cakectl", guestCakectl, "-recording", guestRecording}}},
		Timeout: vmTimeout,
		Stdout:  stdout,
		OutDir:  dir,
		Log:     slog.New(plainHandler{stdout}),
	})
	if err != nil {
		return recording{}, err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintf(stdout, "the kernel of the virtual machine says: %s\n", warning)
	}
	switch step := result.Steps[0]; {
	case step.Error != "":
		return recording{}, errors.New(step.Error)
	case step.Signal != "":
		return recording{}, fmt.Errorf("in the virtual machine, %s ended the demo", step.Signal)
	case step.ExitCode != 0:
		return recording{}, errSaid
	}
	return readRecording(filepath.Join(dir, recordingFile))
}

// build makes a static program and says so.
func build(ctx context.Context, source, target string, stdout io.Writer) error {
	fmt.Fprintf(stdout, "  building %s ...\n", source)
	cmd := exec.CommandContext(ctx, "go", "build", "-o", target, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = stdout, stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", source, err)
	}
	return nil
}

// isStatic tells whether a program runs without the machine's libraries.
func isStatic(path string) (bool, error) {
	file, err := elf.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	interpreted := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	return !interpreted, nil
}

// plainHandler prints what takes time, for people.
type plainHandler struct{ w io.Writer }

func (plainHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h plainHandler) Handle(_ context.Context, r slog.Record) error {
	line := "  " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "release", "kernel", "boot", "error":
			value := a.Value
			if value.Kind() == slog.KindDuration {
				value = slog.DurationValue(value.Duration().Round(100 * time.Millisecond))
			}
			line += fmt.Sprintf(" (%s %v)", a.Key, value)
		}
		return true
	})
	_, err := fmt.Fprintln(h.w, line)
	return err
}

func (h plainHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h plainHandler) WithGroup(string) slog.Handler      { return h }

func readRecording(file string) (r recording, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read what was measured: %w", err)
	}
	return r, nil
}
