// SPDX-License-Identifier: BSD-2-Clause

// Command guest is /init of the VM. It makes the usual file systems, loads the
// kernel modules of the job, runs its steps, sends their output, exit statuses
// and the files of /out to the host, and switches the machine off.
//
// PID 1 itself only reaps: the work is done by a child of the same program, so
// that collecting orphans can't steal the exit status of a step.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/vm/wire"
)

// orphanGrace is how long a step's left-over children may hold its output open
// before they are cut off.
const orphanGrace = 2 * time.Second

func main() {
	if os.Getpid() != 1 {
		if err := work(); err != nil {
			fmt.Fprintln(os.Stderr, "init:", err)
			os.Exit(1)
		}
		return
	}
	if err := supervise(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "init: power off:", err)
	}
}

// supervise starts the worker and reaps every process until the worker ends.
func supervise() error {
	worker, err := os.StartProcess("/init", []string{"/init"}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env:   environment(),
	})
	if err != nil {
		return fmt.Errorf("start the worker: %w", err)
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the worker: %w", err)
		case pid == worker.Pid:
			return nil
		}
	}
}

func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "TMPDIR=/tmp", "USER=root", "TERM=dumb",
		"CAKECTL_VM=1",
	}
}

// work does the job. What goes wrong before the port to the host is open is
// seen on the console only.
func work() error {
	text, err := os.ReadFile(wire.JobPath)
	if err != nil {
		return err
	}
	var job wire.Job
	if err := json.Unmarshal(text, &job); err != nil {
		return fmt.Errorf("parse %s: %w", wire.JobPath, err)
	}
	if err := mountAll(); err != nil {
		return err
	}
	for _, module := range job.Modules {
		if err := loadModule(module); err != nil {
			return err
		}
	}
	file, err := openPort(wire.PortName)
	if err != nil {
		return err
	}
	port := &port{file: file}
	if err := run(job, port); err != nil {
		return errors.Join(err, wire.Write(port, wire.KindFatal, []byte(err.Error())))
	}
	return nil
}

func run(job wire.Job, port *port) error {
	if err := settle(); err != nil {
		return err
	}
	hello, err := hello()
	if err != nil {
		return err
	}
	if err := wire.WriteJSON(port, wire.KindHello, hello); err != nil {
		return err
	}
	for i, step := range job.Steps {
		if err := wire.WriteJSON(port, wire.KindStepStart, wire.StepStart{Index: i}); err != nil {
			return err
		}
		end := runStep(step, output{port})
		end.Index = i
		if err := wire.WriteJSON(port, wire.KindStepEnd, end); err != nil {
			return err
		}
	}
	if err := sendFiles(port, wire.OutDir); err != nil {
		return err
	}
	return wire.Write(port, wire.KindEnd, nil)
}

func mountAll() error {
	// Order matters: a file system may hold the mount point of a later one.
	mounts := []struct {
		source, target, kind string
		optional             bool
	}{
		{"proc", "/proc", "proc", false},
		{"sysfs", "/sys", "sysfs", false},
		{"devtmpfs", "/dev", "devtmpfs", false},
		{"devpts", "/dev/pts", "devpts", true},
		{"tmpfs", "/dev/shm", "tmpfs", false},
		{"tmpfs", "/run", "tmpfs", false},
		{"tmpfs", "/tmp", "tmpfs", false},
		{"bpf", "/sys/fs/bpf", "bpf", false},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", false},
		{"tracefs", "/sys/kernel/tracing", "tracefs", false},
		{"debugfs", "/sys/kernel/debug", "debugfs", true},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			if m.optional {
				continue
			}
			return fmt.Errorf("make mount point: %w", err)
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil && !m.optional {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.target, err)
		}
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return err
	}
	// Programs that use process substitution or read /dev/stdin need these.
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(module wire.Module) error {
	file, err := os.Open(module.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.FinitModule(int(file.Fd()), module.Parameters, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", module.Path, err)
	}
	return nil
}

// openPort waits for the named virtio-serial port: the driver learns a port's
// name from a message of the host, some time after it has found the device.
func openPort(name string) (*os.File, error) {
	const patience = time.Minute
	for start := time.Now(); time.Since(start) < patience; time.Sleep(5 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, path := range names {
			text, err := os.ReadFile(path)
			if err != nil || strings.TrimSpace(string(text)) != name {
				continue
			}
			device := "/dev/" + filepath.Base(filepath.Dir(path))
			// Blocking, outside Go's poller: a write returns when the queue has taken it.
			fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("open %s: %w", device, err)
			}
			return os.NewFile(uintptr(fd), device), nil
		}
	}
	return nil, fmt.Errorf("no virtio-serial port named %q after %v", name, patience)
}

// settle brings the machine into the state that a booted system would have.
func settle() error {
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return os.MkdirAll(wire.OutDir, 0o755)
}

func hello() (wire.Hello, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return wire.Hello{}, fmt.Errorf("uname: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return wire.Hello{}, fmt.Errorf("read the boot clock: %w", err)
	}
	return wire.Hello{
		KernelRelease: unix.ByteSliceToString(name.Release[:]),
		Uptime:        time.Duration(now.Nano()),
	}, nil
}

func runStep(step wire.Step, out io.Writer) wire.StepEnd {
	if len(step.Command) == 0 {
		return wire.StepEnd{ExitCode: 127, Error: "the command is empty"}
	}
	cmd := exec.Command(step.Command[0], step.Command[1:]...)
	cmd.Dir = step.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Env = append(os.Environ(), step.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = orphanGrace

	start := time.Now()
	err := cmd.Run()
	end := wire.StepEnd{Elapsed: time.Since(start)}
	// What the step left running must not disturb the next one. This reaches
	// every process but PID 1 and this one; that there may be none is fine.
	_ = unix.Kill(-1, unix.SIGKILL)
	state := cmd.ProcessState
	if state == nil {
		end.ExitCode, end.Error = 127, err.Error()
		return end
	}
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		end.ExitCode, end.Signal = 128+int(status.Signal()), unix.SignalName(status.Signal())
		return end
	}
	end.ExitCode = state.ExitCode()
	return end
}

// sendFiles sends the directory as a tar archive, in pieces.
func sendFiles(port *port, dir string) error {
	pieces := &files{port: port}
	archive := tar.NewWriter(pieces)
	if err := archive.AddFS(regularFiles{os.DirFS(dir)}); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return pieces.flush()
}

// regularFiles hides sockets, pipes and devices, which a tar archive of results has no use for.
type regularFiles struct{ fs.FS }

func (r regularFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.FS, name)
	kept := entries[:0]
	for _, entry := range entries {
		if entry.IsDir() || entry.Type().IsRegular() {
			kept = append(kept, entry)
		}
	}
	return kept, err
}

// port serialises the frames that several writers send.
type port struct {
	mu   sync.Mutex
	file *os.File
}

func (p *port) Write(frame []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.file.Write(frame)
}

// output sends what is written to it as the output of the current step.
type output struct{ port *port }

func (o output) Write(text []byte) (int, error) {
	if err := wire.Write(o.port, wire.KindOutput, text); err != nil {
		return 0, err
	}
	return len(text), nil
}

// files collects the small writes of a tar writer into frames.
type files struct {
	port   *port
	buffer bytes.Buffer
}

// filePiece is the payload size of the frames that carry files.
const filePiece = 64 << 10

func (f *files) Write(piece []byte) (int, error) {
	n, _ := f.buffer.Write(piece)
	if f.buffer.Len() < filePiece {
		return n, nil
	}
	return n, f.flush()
}

func (f *files) flush() error {
	for f.buffer.Len() > 0 {
		if err := wire.Write(f.port, wire.KindFiles, f.buffer.Next(filePiece)); err != nil {
			return err
		}
	}
	return nil
}
