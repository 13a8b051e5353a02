// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/doctor"
	"github.com/cakectl/cakectl/pkg/qdisc"
	"github.com/cakectl/cakectl/pkg/shaper"
)

var update = flag.Bool("update", false, "write the golden texts of the scripts anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"cakectl": func() { os.Exit(realMain()) },
		"stubborn": func() {
			ctx, _ := withSignals(context.Background())
			fmt.Println("ready")
			<-ctx.Done()
			fmt.Println(context.Cause(ctx))
			select {}
		},
		"get":    get,
		"served": served,
		"anyhow": anyhow,
	})
}

// get prints what a URL has.
func get() {
	response, err := http.Get(os.Args[1])
	if err == nil {
		_, err = io.Copy(os.Stdout, response.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// anyhow runs a command, hands it the signals that it gets, and ends with 0 however that ends.
func anyhow() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	command := exec.Command(os.Args[1], os.Args[2:]...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			_ = command.Process.Signal(s) // it may have ended
		}
	}()
	fmt.Println(command.Wait())
}

// served ends with 0 if a daemon answers for the device.
func served() {
	if _, err := api.NewClient(shaper.DefaultRunDir, os.Args[1]).Status(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The first signal asks a command to end, the second does not ask.
func TestSignals(t *testing.T) {
	command := exec.Command("stubborn")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	first := syscall.SIGHUP
	if signal.Ignored(first) { // under nohup
		first = syscall.SIGINT
	}
	lines := bufio.NewScanner(stdout)
	for _, step := range []struct {
		line   string
		signal syscall.Signal
	}{
		{"ready", first},
		{"interrupted by " + unix.SignalName(first), syscall.SIGTERM},
	} {
		if !lines.Scan() || lines.Text() != step.line {
			t.Errorf("got %q, want %q", lines.Text(), step.line)
		}
		if err := command.Process.Signal(step.signal); err != nil {
			t.Fatal(err)
		}
	}
	var exit *exec.ExitError
	if err := command.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("got %v, want exit status %d", err, 128+int(syscall.SIGTERM))
	}
}

// TestScripts are command lines that need no fq.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// TestVMScripts attach for real.
func TestVMScripts(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" && !hasFQ(t) {
		t.Skip("this kernel has no fq; the VM lane runs these: go run ./internal/vm/run -test ./cmd/cakectl")
	}
	runScripts(t, "testdata/vm")
}

// TestSteadyState needs a clock that no busy host disturbs: the VM's that counts instructions.
func TestSteadyState(t *testing.T) {
	if os.Getenv("CAKECTL_VM") == "" {
		t.Skip("make test-icount runs this in the VM")
	}
	runScripts(t, "testdata/steady")
}

func runScripts(t *testing.T, dir string) {
	fq := hasFQ(t)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Condition: func(condition string) (bool, error) {
			if condition == "fq" {
				return fq, nil
			}
			return false, fmt.Errorf("unknown condition %q", condition)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"netns":    netnsCommand,
			"veth":     vethCommand,
			"capped":   cappedCommand,
			"uncapped": uncappedCommand,
			"exits":    exitsCommand,
			"retry":    retryCommand,
			"signal":   signalCommand,
		},
	})
}

func hasFQ(t *testing.T) bool {
	t.Helper()
	err := doctor.TryFQ()
	if err != nil && !errors.Is(err, qdisc.ErrNoFQ) && !errors.Is(err, doctor.ErrFQUntried) {
		t.Fatalf("try fq: %v", err)
	}
	return err == nil
}

// netnsCommand gives the rest of the script network devices, a /sys, a /run and a BPF file system of
// its own, by moving the thread it runs on. Locked to the script's goroutine, the thread ends with it,
// and with the thread everything in the namespaces.
//
// With a device as argument the BPF file system stays the host's, so that what is pinned can outlive
// the process that pinned it; the device's pins are removed at the end.
func netnsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: netns [DEV]")
	}
	const bpffs, aside = "/sys/fs/bpf", "/run/bpf"
	runtime.LockOSThread()
	ts.Check(unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS))
	ts.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	ts.Check(unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"))
	ts.Check(os.Mkdir(aside, 0o700))
	if len(args) == 0 {
		ts.Check(unix.Mount("bpf", aside, "bpf", 0, "mode=0700"))
	} else {
		ts.Check(unix.Mount(bpffs, aside, "", unix.MS_BIND, ""))
		ts.Defer(func() { ts.Check(os.RemoveAll("/sys/fs/bpf/cakectl/" + args[0])) })
	}
	ts.Check(unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
	ts.Check(unix.Mount(aside, bpffs, "", unix.MS_MOVE, ""))
	lo, err := netlink.LinkByName("lo")
	ts.Check(err)
	ts.Check(netlink.LinkSetUp(lo))
}

// vethCommand makes a veth pair with a number of transmit queues, the peer's name with a "p" behind.
func vethCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: veth DEV QUEUES")
	}
	queues, err := strconv.Atoi(args[1])
	ts.Check(err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = args[0], queues, queues
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNumTxQueues, veth.PeerNumRxQueues = args[0]+"p", uint32(queues), uint32(queues)
	ts.Check(netlink.LinkAdd(veth))
	for _, name := range []string{args[0], args[0] + "p"} {
		link, err := netlink.LinkByName(name)
		ts.Check(err)
		ts.Check(netlink.LinkSetUp(link))
	}
}

// uncappedCommand takes from the programs that the script runs from now on the capabilities that
// shaping needs. They stay root, which owns the files.
func uncappedCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: uncapped")
	}
	runtime.LockOSThread()
	for _, capability := range []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN} {
		ts.Check(unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0))
	}
}

// cappedCommand leaves the programs that the script runs from now on the capabilities that deploy/cakectl.service
// does.
func cappedCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: capped")
	}
	runtime.LockOSThread()
	for capability := range unix.CAP_LAST_CAP + 1 {
		switch capability {
		case unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON:
		default:
			ts.Check(unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0))
		}
	}
}

// exitsCommand runs a program that has to end with an exit status.
func exitsCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENT]...")
	}
	if got := exitStatus(ts, args[1:]); strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// retryTime is ample for an attach in an emulated machine.
const retryTime = 3 * time.Minute

// retryCommand runs a program until it ends with an exit status.
func retryCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: retry STATUS COMMAND [ARGUMENT]...")
	}
	for deadline := time.Now().Add(retryTime); ; time.Sleep(50 * time.Millisecond) {
		got := exitStatus(ts, args[1:])
		if strconv.Itoa(got) == args[0] {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("exit status %d for %v, want %s", got, retryTime, args[0])
		}
	}
}

func exitStatus(ts *testscript.TestScript, command []string) int {
	err := ts.Exec(command[0], command[1:]...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	ts.Fatalf("%v", err)
	return -1
}

// signalCommand sends a signal to the program that was last started in the background.
func signalCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: signal SIGNAL")
	}
	number := unix.SignalNum(args[0])
	background := ts.BackgroundCmds()
	if number == 0 || len(background) == 0 {
		ts.Fatalf("no signal %s, or nothing to send it to", args[0])
	}
	process := background[len(background)-1].Process
	ts.Check(process.Signal(number))
	if number == unix.SIGSTOP { // which a busy process does a moment later
		ts.Check(unix.Waitid(unix.P_PID, process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil))
	}
}
