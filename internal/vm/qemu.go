// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/vm/wire"
)

const qemuProgram = "qemu-system-x86_64"

// kernelArguments of every guest. An oops becomes a panic and a panic a reboot,
// which -no-reboot turns into the end of QEMU. Only warnings and worse go to
// the console: every character on it costs the guest an exit. The TSC is in
// step on all CPUs, as there is one thread; kernels that are not told so fall
// back to a timer that is slow to read. DAMON would look at which pages were
// accessed: that depends on QEMU's cache of translations, whose size goes by the
// host's clock, and a guest with a seed would not do the same each time.
const kernelArguments = "console=ttyS0 loglevel=5 oops=panic panic=-1 nokaslr mitigations=off random.trust_cpu=on tsc=reliable damon_stat.enabled=0"

// processor of every guest: all that can be emulated, but for the promise that
// REP MOVSB is fast, by which the kernel copies user data. Emulated, it moves
// one byte at a time; without it TCP goes through five times as fast.
const processor = "max,erms=off,fsrm=off"

// firstExtraFD is the number that the first of exec.Cmd.ExtraFiles gets.
const firstExtraFD = 3

// machine is a running QEMU.
type machine struct {
	port    *os.File // the host's end of the virtio-serial port
	process *os.Process
	stderr  bytes.Buffer // complete once exited is closed
	exited  chan struct{}
	err     error // of Wait; valid once exited is closed
}

// startMachine switches a VM on. It lives until it ends by itself, stop is
// called or ctx ends.
func startMachine(ctx context.Context, config Config, boot bootFiles, console *console) (*machine, error) {
	program, err := findProgram(qemuProgram)
	if err != nil {
		return nil, fmt.Errorf("program %s (install package qemu-system-x86): %w", qemuProgram, err)
	}
	port, guestPort, err := portPair()
	if err != nil {
		return nil, err
	}
	m := &machine{port: port, exited: make(chan struct{})}
	cmd := exec.CommandContext(ctx, program, qemuArguments(config, boot)...)
	cmd.ExtraFiles = []*os.File{guestPort}
	cmd.Stdout, cmd.Stderr = console, &m.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// No terminal's Ctrl-C: the context decides when the VM ends.
		Setpgid: true,
		// The kernel kills it if this process dies without a chance to.
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error)
	go m.live(cmd, config.VirtioQueues, started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, port.Close())
	}
	return m, nil
}

// live starts QEMU and waits for its end. It holds one thread all the time,
// because the death signal is tied to the thread that started the process, and
// because that thread's network namespace is the one that QEMU lives in.
func (m *machine) live(cmd *exec.Cmd, virtioQueues int, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := start(cmd, virtioQueues)
	for _, file := range cmd.ExtraFiles {
		err = errors.Join(err, file.Close())
	}
	if err == nil {
		m.process = cmd.Process
	} else if cmd.Process != nil {
		err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	started <- err
	if err == nil {
		m.err = cmd.Wait()
		close(m.exited)
	}
}

// start starts QEMU, with virtio devices in a network namespace of its own. The
// namespace has no name: it is gone with the last process and file in it.
func start(cmd *exec.Cmd, virtioQueues int) (err error) {
	if virtioQueues == 0 {
		return cmd.Start()
	}
	home, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer home.Close()
	away, err := netns.New()
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			err = errors.Join(err, fmt.Errorf("return to the network namespace: %w", back))
		}
		err = errors.Join(err, away.Close())
	}()
	taps, err := bridgedTaps(virtioQueues)
	cmd.ExtraFiles = append(cmd.ExtraFiles, taps...)
	if err != nil {
		return err
	}
	return cmd.Start()
}

// portPair returns the two ends of the connection to the virtio-serial port.
func portPair() (host, guest *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the port's sockets: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), "vm-port"), os.NewFile(uintptr(pair[1]), "vm-port-guest"), nil
}

func qemuArguments(config Config, boot bootFiles) []string {
	machine, port := "q35", "virtio-serial-pci"
	if config.ICount {
		// What QEMU's other thread does comes at other instructions each time: nothing does that is not
		// needed, and the port's requests are served by the thread of the guest.
		machine += ",sata=off,i8042=off,smm=off,hpet=off,vmport=off"
		port += ",ioeventfd=off"
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", machine,
		// One thread: with several, the guest's live patching of its own code oopses.
		"-accel", "tcg,thread=single",
		"-cpu", processor,
		"-smp", strconv.Itoa(config.SMP),
		"-m", strconv.Itoa(config.MemoryMiB),
		"-kernel", boot.kernel, "-initrd", boot.initramfs, "-append", kernelArguments,
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-device", port,
		"-chardev", "socket,id=port,fd=" + strconv.Itoa(firstExtraFD),
		"-device", "virtserialport,chardev=port,name=" + wire.PortName,
	}
	if config.ICount {
		// Packets that are outside the guest take the host's time: a guest that waits for them must not
		// skip it.
		sleep := "off"
		if config.VirtioQueues > 0 {
			sleep = "on"
		}
		args = append(args, "-icount", "shift=0,sleep="+sleep)
	}
	if config.Seed != 0 {
		args = append(args, "-seed", strconv.Itoa(config.Seed))
		if config.ICount {
			args = append(args, "-rtc", "base=2026-01-01,clock=vm")
		}
	}
	if config.VirtioQueues > 0 {
		args = append(args, virtioArguments(config.VirtioQueues)...)
	}
	return args
}

// virtioArguments describe the virtio-net devices. The files of the taps'
// queues follow the port's, device by device.
func virtioArguments(queues int) []string {
	var args []string
	fd := firstExtraFD + 1
	for device := range tapDevices {
		var fds []string
		for range queues {
			fds = append(fds, strconv.Itoa(fd))
			fd++
		}
		// A vector for each direction of each queue, one for configuration, one for control.
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%d,fds=%s,vhost=off", device, strings.Join(fds, ":")),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mq=on,vectors=%d,mac=02:00:00:00:00:%02x,romfile=", device, 2*queues+2, device+1))
	}
	return args
}

// stop ends QEMU, if it still runs, and waits for its end.
func (m *machine) stop() {
	_ = m.process.Kill() // fails only when it has ended already
	<-m.exited
	_ = m.port.Close()
}

// failure returns why QEMU ended by itself; nil when that was the guest's
// wish. Valid after stop.
func (m *machine) failure() error {
	if m.err == nil {
		return nil
	}
	return fmt.Errorf("qemu: %w: %s", m.err, strings.TrimSpace(m.stderr.String()))
}
