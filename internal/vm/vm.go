// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/cakectl/cakectl/internal/vm/wire"
)

// Step is one program to run in the guest.
type Step = wire.Step

// Config says what to run in a VM, and in which one.
type Config struct {
	// Lane names the kernel, one of [Lanes].
	Lane string
	// SMP is the number of CPUs; 0 means 1. They take turns on one thread of the host.
	SMP int
	// MemoryMiB is the size of the guest's memory; 0 means 1024.
	MemoryMiB int
	// ICount makes the guest's clock count instructions (one a nanosecond)
	// instead of following the host's: measurements repeat, but say nothing
	// about real time. A guest with nothing to do skips to its next timer; with
	// virtio devices it lets real time pass, for packets that are outside.
	ICount bool
	// Seed, unless 0, is that of the guest's random numbers, which are the host's
	// otherwise. With ICount the guest's day is always the same then, too.
	Seed int
	// VirtioQueues, unless 0, adds two virtio-net devices (eth0 and eth1) with
	// that many queue pairs, joined by a bridge outside the guest.
	VirtioQueues int
	// Files are copied into the guest before it boots: guest path to host
	// path. A directory is copied with its content.
	Files map[string]string
	// Steps run one after the other, each whatever became of the earlier ones.
	Steps []Step
	// Timeout bounds everything from power-on; 0 means ten minutes. Be
	// generous: on a busy host a boot can take ten times as long as on an idle one.
	Timeout time.Duration
	// Stdout receives what the steps print on their standard output and
	// standard error; nil discards it.
	Stdout io.Writer
	// StepDone, unless nil, is called at the end of each step, after its output
	// was written to Stdout.
	StepDone func(StepResult)
	// Console, unless nil, receives the guest's console: the kernel's messages.
	Console io.Writer
	// OutDir is a directory of the host that receives what the steps leave in
	// the guest's /out. It is made when needed; empty discards the files.
	OutDir string
	// CacheDir holds the kernels; empty means .cache/vm in the module's root.
	CacheDir string
	// Log reports slow steps of the preparation; nil means [slog.Default].
	Log *slog.Logger
}

// StepResult tells how a step ended.
type StepResult struct {
	// Index of the step in Config.Steps.
	Index int
	// ExitCode is the step's exit status, 128 + n when signal n ended it, or
	// 127 when it could not be started.
	ExitCode int
	// Signal names the signal that ended the step; empty if none did.
	Signal string
	// Error says why the step could not be started; empty if it could.
	Error string
	// Elapsed is the step's duration by the guest's clock.
	Elapsed time.Duration
}

// Result tells what happened in a VM that did all its steps.
type Result struct {
	// Steps has one entry for each of Config.Steps.
	Steps []StepResult
	// KernelRelease is the guest's uname -r.
	KernelRelease string
	// Boot is the time from power-on to the first step, by the host's clock.
	Boot time.Duration
	// Warnings are the kernel's complaints on the console (WARNING: …).
	Warnings []string
}

// ExitCode returns the exit status of the first step that failed, or 0.
func (r Result) ExitCode() int {
	for _, step := range r.Steps {
		if step.ExitCode != 0 {
			return step.ExitCode
		}
	}
	return 0
}

// GuestError is a VM that did not get through its steps: it crashed, hung, or
// could not do its job.
type GuestError struct {
	// Reason says what happened.
	Reason string
	// Step is the index of the step that was running, -1 before the first one.
	Step int
	// Console is the end of what the console said.
	Console string
	// Err is the cause as far as there is one; context.DeadlineExceeded for a hang.
	Err error
}

// Error returns the reason, where it happened, and the end of the console.
func (e *GuestError) Error() string {
	where := "before the first step"
	if e.Step >= 0 {
		where = fmt.Sprintf("in step %d", e.Step)
	}
	text := fmt.Sprintf("VM: %s %s", e.Reason, where)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Console != "" {
		text += "\nend of the console:\n" + e.Console
	}
	return text
}

// Unwrap returns the cause.
func (e *GuestError) Unwrap() error { return e.Err }

// Run boots a VM, runs the steps in it and switches it off. A step that fails
// is no error: see [Result.ExitCode]. A guest that crashes, or does not finish
// in time, is a [*GuestError], and what it told before is in the result.
// Nothing is left behind, also when ctx is cancelled: no process, no network
// namespace, no temporary file.
func Run(ctx context.Context, config Config) (Result, error) {
	config, err := config.complete(ctx)
	if err != nil {
		return Result{}, err
	}
	kernel, err := ensureKernel(ctx, config.Log, config.CacheDir, config.Lane, fetchKernel)
	if err != nil {
		return Result{}, err
	}
	temporary, err := os.MkdirTemp("", "cakectl-vm-")
	if err != nil {
		return Result{}, fmt.Errorf("prepare the VM: %w", err)
	}
	defer os.RemoveAll(temporary)
	boot, err := prepare(ctx, config, kernel, temporary)
	if err != nil {
		return Result{}, fmt.Errorf("prepare the VM: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, config.Timeout)
	defer cancel()
	console := &console{copy: config.Console}
	powerOn := time.Now()
	machine, err := startMachine(ctx, config, boot, console)
	if err != nil {
		return Result{}, fmt.Errorf("start the VM: %w", err)
	}
	session := session{config: config, powerOn: powerOn, step: -1}
	err = session.follow(machine.port)
	if isEOF(err) {
		// QEMU is on its way out: let it say why.
		<-machine.exited
	}
	// The guest has nothing to lose: killing it is quicker than a shutdown.
	machine.stop()
	if err = session.judge(ctx, err, machine, console); err != nil {
		return session.result, err
	}
	session.result.Warnings = console.warnings()
	return session.result, nil
}

// complete fills in the defaults and checks the rest.
func (c Config) complete(ctx context.Context) (Config, error) {
	c.SMP = cmp.Or(c.SMP, 1)
	c.MemoryMiB = cmp.Or(c.MemoryMiB, 1024)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Minute)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.Stdout == nil {
		c.Stdout = io.Discard
	}
	if c.SMP < 0 || c.MemoryMiB < 0 || c.VirtioQueues < 0 || c.Timeout < 0 {
		return c, fmt.Errorf("VM with %d CPUs, %d MiB, %d queues and %v to run: none can be negative", c.SMP, c.MemoryMiB, c.VirtioQueues, c.Timeout)
	}
	if len(c.Steps) == 0 {
		return c, errors.New("VM without a step: nothing to run")
	}
	if c.CacheDir == "" {
		root, err := moduleRoot(ctx)
		if err != nil {
			return c, err
		}
		c.CacheDir = filepath.Join(root, ".cache", "vm")
	}
	return c, nil
}

// moduleRoot returns the directory of the Go module that the process runs in.
func moduleRoot(ctx context.Context) (string, error) {
	path, err := output(ctx, "", "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	path = strings.TrimSpace(path)
	if path == "" || path == os.DevNull {
		return "", errors.New("the working directory is in no Go module")
	}
	return filepath.Dir(path), nil
}

// bootFiles are what the machine starts from.
type bootFiles struct {
	kernel, initramfs string
}

func prepare(ctx context.Context, config Config, kernel kernel, temporary string) (bootFiles, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return bootFiles{}, err
	}
	vmlinuz, err := kernel.vmlinuz()
	if err != nil {
		return bootFiles{}, err
	}
	modulesDir, err := kernel.modulesDir()
	if err != nil {
		return bootFiles{}, err
	}
	tree, err := openModuleTree(modulesDir, filepath.Join(kernel.dir, "decompressed"))
	if err != nil {
		return bootFiles{}, err
	}
	modules, err := tree.loadOrder(ctx, wantedModules)
	if err != nil {
		return bootFiles{}, err
	}
	guest := filepath.Join(temporary, "init")
	if err := buildGuest(ctx, root, guest); err != nil {
		return bootFiles{}, err
	}
	boot := bootFiles{kernel: vmlinuz, initramfs: filepath.Join(temporary, "initramfs")}
	file, err := os.Create(boot.initramfs)
	if err != nil {
		return bootFiles{}, err
	}
	image := image{init: guest, modules: modules, steps: config.Steps, files: config.Files}
	return boot, errors.Join(image.write(ctx, file), file.Close())
}

// session is the host's side of the talk with a guest.
type session struct {
	config  Config
	powerOn time.Time
	result  Result
	step    int // running now, -1 before the first
	archive bytes.Buffer
}

// errFatal is the guest's own word that it could not go on.
type errFatal string

func (e errFatal) Error() string { return string(e) }

// follow reads frames until the guest has said that it is done. Anything else
// that ends the stream is an error.
func (s *session) follow(port io.Reader) error {
	for {
		kind, payload, err := wire.Read(port)
		if err != nil {
			return err
		}
		done, err := s.handle(kind, payload)
		if done || err != nil {
			return err
		}
	}
}

func (s *session) handle(kind wire.Kind, payload []byte) (done bool, err error) {
	switch kind {
	case wire.KindHello:
		var hello wire.Hello
		if err := json.Unmarshal(payload, &hello); err != nil {
			return false, fmt.Errorf("parse the guest's greeting: %w", err)
		}
		s.result.KernelRelease = hello.KernelRelease
		s.result.Boot = time.Since(s.powerOn)
		s.config.Log.Debug("VM is up", "kernel", hello.KernelRelease, "boot", s.result.Boot, "uptime", hello.Uptime)
	case wire.KindStepStart:
		var start wire.StepStart
		if err := json.Unmarshal(payload, &start); err != nil {
			return false, fmt.Errorf("parse the start of a step: %w", err)
		}
		s.step = start.Index
	case wire.KindOutput:
		if _, err := s.config.Stdout.Write(payload); err != nil {
			return false, fmt.Errorf("pass on the output of step %d: %w", s.step, err)
		}
	case wire.KindStepEnd:
		var end wire.StepEnd
		if err := json.Unmarshal(payload, &end); err != nil {
			return false, fmt.Errorf("parse the end of step %d: %w", s.step, err)
		}
		step := StepResult(end)
		s.result.Steps = append(s.result.Steps, step)
		if s.config.StepDone != nil {
			s.config.StepDone(step)
		}
	case wire.KindFiles:
		s.archive.Write(payload)
	case wire.KindFatal:
		return false, errFatal(payload)
	case wire.KindEnd:
		if len(s.result.Steps) != len(s.config.Steps) {
			return false, fmt.Errorf("the guest ran %d of %d steps", len(s.result.Steps), len(s.config.Steps))
		}
		if s.config.OutDir == "" {
			return true, nil
		}
		return true, extract(&s.archive, s.config.OutDir)
	default:
		return false, fmt.Errorf("unknown frame %q", kind)
	}
	return false, nil
}

// judge turns the end of a session into the error of Run: a kernel that oopsed
// has failed even if the steps went through.
func (s *session) judge(ctx context.Context, err error, machine *machine, console *console) error {
	failure := &GuestError{Step: s.step, Console: console.tail(), Err: err}
	var fatal errFatal
	switch {
	case console.oops() != "":
		failure.Reason = "the kernel crashed (" + console.oops() + ")"
		failure.Err = nil
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		failure.Reason = fmt.Sprintf("not done after %v", s.config.Timeout)
		failure.Err = context.DeadlineExceeded
	case ctx.Err() != nil:
		return fmt.Errorf("VM stopped: %w", context.Cause(ctx))
	case errors.As(err, &fatal):
		failure.Reason = "the guest could not go on"
	case isEOF(err):
		failure.Reason = "the guest switched off without a result"
		failure.Err = machine.failure()
	default:
		failure.Reason = "the talk with the guest failed"
	}
	return failure
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// extract unpacks regular files and directories below dir, and nothing outside it.
func extract(archive io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("receive files: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("receive files: %w", err)
	}
	defer root.Close()
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive files: %w", err)
		}
		if err := extractEntry(root, header, reader); err != nil {
			return fmt.Errorf("receive %s: %w", header.Name, err)
		}
	}
}

func extractEntry(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if header.Typeflag == tar.TypeDir {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := root.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
