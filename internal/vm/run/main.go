// SPDX-License-Identifier: BSD-2-Clause

// Command run boots a VM with one of Debian's kernels and runs a program, or
// the tests of Go packages, in it. See package vm for what it needs and does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cakectl/cakectl/internal/vm"
)

const usage = `usage: run [flags] -- command [argument]...
       run [flags] -test PACKAGE [-test PACKAGE]... [-- argument of the test binaries]...

Runs the command, or the tests, as root in a VM. Its exit status is the
command's, or 1 if a test failed; 125 if the VM itself failed, 2 on bad usage.

flags:
`

// exit statuses of our own
const (
	exitUsage  = 2
	exitBroken = 125
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends the program at once; the kernel then ends QEMU.
	context.AfterFunc(ctx, stop)
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(code)
}

// options are the command line.
type options struct {
	config   vm.Config
	packages list
	runTests string
	verbose  bool
	console  bool
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, " ") }

func (l *list) Set(value string) error {
	*l = append(*l, value)
	return nil
}

// fileMap is a flag guest=host that may be given several times.
type fileMap map[string]string

func (m fileMap) String() string { return "" }

func (m fileMap) Set(value string) error {
	guest, host, found := strings.Cut(value, "=")
	if !found || !strings.HasPrefix(guest, "/") || host == "" {
		return fmt.Errorf("%q is not of the form /guest/path=host/path", value)
	}
	m[guest] = host
	return nil
}

func parse(args []string, stderr io.Writer) (options, []string, error) {
	o := options{config: vm.Config{Files: map[string]string{}}}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.config.Lane, "lane", "newest", "kernel: "+strings.Join(vm.Lanes(), ", "))
	flags.IntVar(&o.config.SMP, "smp", 1, "number of CPUs")
	flags.IntVar(&o.config.MemoryMiB, "memory", 1024, "memory in MiB")
	flags.IntVar(&o.config.VirtioQueues, "virtio", 0, "queues of two bridged virtio-net devices, eth0 and eth1; 0 for none")
	flags.BoolVar(&o.config.ICount, "icount", false, "let the guest's clock count instructions")
	flags.DurationVar(&o.config.Timeout, "timeout", 10*time.Minute, "time from power-on after which the VM counts as hung")
	flags.StringVar(&o.config.OutDir, "out", "", "`directory` for what the guest leaves in /out")
	flags.Var(fileMap(o.config.Files), "file", "file or directory to copy into the guest, `guest=host`; may be repeated")
	flags.Var(&o.packages, "test", "Go `package` (or pattern) whose tests to run; may be repeated")
	flags.StringVar(&o.runTests, "run", "", "run only tests that match this `regexp`")
	flags.BoolVar(&o.verbose, "v", true, "list every test (-test.v)")
	flags.BoolVar(&o.console, "console", false, "show the guest's console on standard error")
	if err := flags.Parse(args); err != nil {
		return o, nil, err
	}
	rest := flags.Args()
	if len(o.packages) == 0 && len(rest) == 0 {
		flags.Usage()
		return o, nil, errors.New("neither a command nor a package to test")
	}
	return o, rest, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	o, rest, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0, nil
	}
	if err != nil {
		return exitUsage, err
	}
	o.config.Log = slog.New(slog.NewTextHandler(stderr, nil))
	o.config.Stdout = stdout
	if o.console {
		o.config.Console = stderr
	}
	if len(o.packages) > 0 {
		return runTests(ctx, o, rest, stdout, stderr)
	}
	o.config.Steps = []vm.Step{{Command: rest}}
	result, err := vm.Run(ctx, o.config)
	if err != nil {
		return exitBroken, err
	}
	report(result, stderr)
	if reason := result.Steps[0].Error; reason != "" {
		return result.ExitCode(), errors.New(reason)
	}
	return result.ExitCode(), nil
}

// report tells what else there is to know about a run.
func report(result vm.Result, stderr io.Writer) {
	for _, warning := range result.Warnings {
		fmt.Fprintln(stderr, "vm: the guest's kernel says:", warning)
	}
}

// testPackage is a package whose tests can run.
type testPackage struct {
	path, dir string
}

// runTests compiles the tests, runs them in one VM and prints what go test would.
func runTests(ctx context.Context, o options, arguments []string, stdout, stderr io.Writer) (code int, err error) {
	temporary, err := os.MkdirTemp("", "cakectl-vm-tests-")
	if err != nil {
		return exitBroken, err
	}
	defer os.RemoveAll(temporary)
	packages, err := listPackages(ctx, o.packages, stdout)
	if err != nil {
		return exitBroken, err
	}
	if len(packages) == 0 {
		return 0, nil
	}
	flags := []string{
		fmt.Sprintf("-test.v=%t", o.verbose),
		// Before the VM's own limit, so that the stacks of a hanging test are seen.
		fmt.Sprintf("-test.timeout=%v", o.config.Timeout*3/4),
	}
	if o.runTests != "" {
		flags = append(flags, "-test.run="+o.runTests)
	}
	for i, p := range packages {
		binary := filepath.Join(temporary, fmt.Sprintf("%d.test", i))
		if err := compileTest(ctx, p.path, binary, stderr); err != nil {
			return 1, err
		}
		guestDir := fmt.Sprintf("/test/%d", i)
		guestBinary := guestDir + "/" + filepath.Base(p.path) + ".test"
		o.config.Files[guestBinary] = binary
		// Go runs tests in their package's directory, where they look for their data.
		testdata := filepath.Join(p.dir, "testdata")
		if info, err := os.Stat(testdata); err == nil && info.IsDir() {
			o.config.Files[guestDir+"/testdata"] = testdata
		}
		o.config.Steps = append(o.config.Steps, vm.Step{
			Command: append(append([]string{guestBinary}, flags...), arguments...),
			Dir:     guestDir,
		})
	}
	o.config.StepDone = func(step vm.StepResult) {
		printStep(stdout, packages[step.Index].path, step)
	}
	result, err := vm.Run(ctx, o.config)
	if err != nil {
		return exitBroken, err
	}
	report(result, stderr)
	if result.ExitCode() != 0 {
		fmt.Fprintln(stdout, "FAIL")
		return 1, nil
	}
	return 0, nil
}

// printStep prints the line with which go test ends a package.
func printStep(stdout io.Writer, path string, step vm.StepResult) {
	if step.ExitCode == 0 {
		fmt.Fprintf(stdout, "ok  \t%s\t%.3fs\n", path, step.Elapsed.Seconds())
		return
	}
	switch {
	case step.Error != "":
		fmt.Fprintln(stdout, step.Error)
	case step.Signal != "":
		fmt.Fprintln(stdout, "signal:", step.Signal)
	default:
		fmt.Fprintln(stdout, "exit status", step.ExitCode)
	}
	fmt.Fprintf(stdout, "FAIL\t%s\t%.3fs\n", path, step.Elapsed.Seconds())
}

// listPackages expands patterns and leaves out packages without tests.
func listPackages(ctx context.Context, patterns []string, stdout io.Writer) ([]testPackage, error) {
	const format = `{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{len .TestGoFiles}}{{"\t"}}{{len .XTestGoFiles}}`
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format, "--"}, patterns...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var packages []testPackage
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("list packages: unexpected line %q", line)
		}
		if fields[2] == "0" && fields[3] == "0" {
			fmt.Fprintf(stdout, "?   \t%s\t[no test files]\n", fields[0])
			continue
		}
		packages = append(packages, testPackage{path: fields[0], dir: fields[1]})
	}
	return packages, nil
}

// compileTest makes a static test binary: the guest has no C library to speak of.
func compileTest(ctx context.Context, path, target string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", target, path)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile the tests of %s: %w", path, err)
	}
	return nil
}
