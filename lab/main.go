// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/vm"
	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Where programs are in the VM.
const (
	guestLab     = "/lab"
	guestPlan    = "/plan.json"
	guestCakectl = "/cakectl"
)

// bootTime is allowed for a VM in addition to what its runs take, runOverhead for each run: a busy host
// emulates slowly.
const (
	bootTime    = time.Minute
	runOverhead = 3 * time.Minute
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

type options struct {
	plan     experiments.Plan
	lane     string
	smp      int
	native   bool
	realTime bool
	list     bool
	json     string
	plain    string // the plan of a guest
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	flags.SetOutput(stderr)
	names := flags.String("exp", "tcp1,tcp32,udp16x4", "experiments, separated by commas; all for every one")
	peers := flags.String("peers", "cake,cake_mq,cakectl", "shapers, separated by commas")
	rateList := flags.String("rates", "40mbit", "bandwidths, separated by commas")
	queueList := flags.String("queues", "8", "numbers of transmit queues, separated by commas")
	flags.IntVar(&o.plan.Repeat, "repeat", 1, "how often to run each")
	flags.DurationVar(&o.plan.Duration, "duration", 5*time.Second, "measured time of a run")
	flags.DurationVar(&o.plan.Warmup, "warmup", time.Second, "time under load before that")
	flags.StringVar(&o.plan.Diffserv, "diffserv", "diffserv4", "preset of tins, for the shapers that have tins")
	flags.StringVar(&o.lane, "lane", "newest", "kernel of the VM: "+strings.Join(vm.Lanes(), ", "))
	flags.IntVar(&o.smp, "smp", 1, "CPUs of the VM; they take turns, so that more of them add delays")
	flags.BoolVar(&o.native, "native", false, "run on this machine's kernel, as root")
	flags.BoolVar(&o.realTime, "real-time", false, "let the VM's clock follow the host's instead of counting instructions")
	flags.BoolVar(&o.list, "list", false, "list experiments and shapers")
	flags.StringVar(&o.json, "json", "", "`file` for every single result")
	flags.BoolVar(&o.plan.Details, "details", false, "with -json: keep what each shaper's own tools say at the end of a run")
	flags.StringVar(&o.plain, "plan", "", "run the plan in this `file` and print rows (what runs in the VM)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	o.plan.Experiments = split(*names)
	if *names == "all" {
		o.plan.Experiments = nil
		for _, e := range experiments.All() {
			o.plan.Experiments = append(o.plan.Experiments, e.Name)
		}
	}
	o.plan.Peers = split(*peers)
	for _, text := range split(*rateList) {
		value, err := rates.ParseValue(text)
		if err != nil {
			return o, fmt.Errorf("-rates: %w", err)
		}
		rate, err := value.Resolve(0)
		if err != nil {
			return o, fmt.Errorf("-rates: %w", err)
		}
		o.plan.Rates = append(o.plan.Rates, rate)
	}
	for _, text := range split(*queueList) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-queues: %q is not a number of queues", text)
		}
		o.plan.Queues = append(o.plan.Queues, n)
	}
	return o, o.plan.Check()
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	switch {
	case o.list:
		return list(stdout)
	case o.plain != "":
		return runPlan(ctx, o.plain, stdout)
	}
	var rows []experiments.Row
	collect := func(row experiments.Row) {
		rows = append(rows, row)
		status := "ok"
		if row.Error != "" {
			status = "BROKEN: " + row.Error
		}
		fmt.Fprintf(stderr, "%d/%d %s %s %v %dq run %d: %s\n", len(rows), o.plan.Runs(), row.Experiment, row.Peer, row.Rate, row.Queues, row.Repeat+1, status)
	}
	dir, err := os.MkdirTemp("", "cakectl-lab-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cakectl := filepath.Join(dir, "cakectl")
	if err := build(ctx, "./cmd/cakectl", cakectl, stderr); err != nil {
		return err
	}
	var kernel string
	if o.native {
		o.plan.Cakectl = cakectl
		if kernel, err = kernelRelease(); err == nil {
			err = o.plan.Run(ctx, collect)
		}
	} else {
		o.plan.Cakectl = guestCakectl
		kernel, err = runVM(ctx, o, dir, map[string]string{guestCakectl: cakectl}, stderr, collect)
	}
	return errors.Join(err, report(o, args, rows, kernel, stdout))
}

func list(w io.Writer) error {
	for _, e := range experiments.All() {
		fmt.Fprintf(w, "%-14s %s\n", e.Name, e.About)
	}
	fmt.Fprintln(w)
	for _, p := range shaper.Peers() {
		fmt.Fprintf(w, "%-14s %s\n", p.Name, strings.Join(p.Commands, "; "))
	}
	return nil
}

// runPlan is the part that runs in the VM: it prints a row a line.
func runPlan(ctx context.Context, file string, stdout io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var plan experiments.Plan
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	encoder := json.NewEncoder(stdout)
	return plan.Run(ctx, func(row experiments.Row) { _ = encoder.Encode(row) })
}

// runVM runs the plan in a VM with files (guest path to host path), hands out the rows as they come,
// and returns the kernel's release. It leaves files in dir.
func runVM(ctx context.Context, o options, dir string, files map[string]string, stderr io.Writer, emit func(experiments.Row)) (kernel string, err error) {
	files[guestLab], files[guestPlan] = filepath.Join(dir, "lab"), filepath.Join(dir, "plan.json")
	if err := build(ctx, "./lab", files[guestLab], stderr); err != nil {
		return "", err
	}
	text, err := json.Marshal(o.plan)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(files[guestPlan], text, 0o644); err != nil {
		return "", err
	}
	result, err := vm.Run(ctx, vm.Config{
		Lane:    o.lane,
		SMP:     o.smp,
		ICount:  !o.realTime,
		Files:   files,
		Steps:   []vm.Step{{Command: []string{guestLab, "-plan", guestPlan}}},
		Timeout: bootTime + time.Duration(o.plan.Runs())*(o.plan.Warmup+o.plan.Duration+runOverhead),
		Stdout:  &rowReader{emit: emit, other: stderr},
		Log:     slog.New(slog.NewTextHandler(stderr, nil)),
	})
	if err != nil {
		return "", err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintln(stderr, "the guest's kernel says:", warning)
	}
	if code := result.ExitCode(); code != 0 {
		return result.KernelRelease, fmt.Errorf("the runner in the VM ended with status %d", code)
	}
	return result.KernelRelease, nil
}

// build makes a static program.
func build(ctx context.Context, source, target string, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", target, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.Stdout, cmd.Stderr = stderr, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w", source, err)
	}
	return nil
}

// rowReader takes rows, a line each, out of what the guest prints, and passes on the rest.
type rowReader struct {
	emit  func(experiments.Row)
	other io.Writer
	line  []byte
}

func (r *rowReader) Write(text []byte) (int, error) {
	r.line = append(r.line, text...)
	for {
		line, rest, complete := bytes.Cut(r.line, []byte("\n"))
		if !complete {
			return len(text), nil
		}
		var row experiments.Row
		if err := json.Unmarshal(line, &row); err == nil {
			r.emit(row)
		} else {
			fmt.Fprintf(r.other, "%s\n", line)
		}
		r.line = rest
	}
}

// results is what -json writes.
type results struct {
	Command []string          `json:"command"`
	Kernel  string            `json:"kernel"`
	Time    time.Time         `json:"time"`
	Plan    experiments.Plan  `json:"plan"`
	Rows    []experiments.Row `json:"rows"`
}

// report prints the tables and says what is broken or missing.
func report(o options, args []string, rows []experiments.Row, kernel string, stdout io.Writer) error {
	fmt.Fprintf(stdout, "go run ./lab %s\n\n", strings.Join(args, " "))
	fmt.Fprintf(stdout, "Kernel %s; %v measured after %v; %d runs each, shapers interleaved.\n\n", kernel, o.plan.Duration, o.plan.Warmup, o.plan.Repeat)
	errs := []error{experiments.Table(stdout, rows)}
	if o.json != "" {
		text, err := json.MarshalIndent(results{args, kernel, time.Now(), o.plan, rows}, "", "\t")
		if err == nil {
			err = os.WriteFile(o.json, append(text, '\n'), 0o644)
		}
		errs = append(errs, err)
	}
	broken := 0
	for _, row := range rows {
		if row.Error != "" {
			broken++
		}
	}
	if broken > 0 {
		errs = append(errs, fmt.Errorf("%d of %d runs are broken", broken, len(rows)))
	}
	if missing := o.plan.Runs() - len(rows); missing > 0 {
		errs = append(errs, fmt.Errorf("%d of %d runs are missing", missing, o.plan.Runs()))
	}
	return errors.Join(errs...)
}

// kernelRelease is this machine's uname -r.
func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
