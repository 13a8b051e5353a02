// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	jobs     int
	seed     int
	patience time.Duration
	output   output
	plain    string // the plan of a guest
	from     string // a file of results to print instead of running
	compare  bool
	files    []string // to compare
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	flags.SetOutput(stderr)
	names := flags.String("exp", "tcp1,tcp32,udp16x4", "experiments, separated by commas; all for every one")
	peers := flags.String("peers", "cake,cake_mq,cakectl", "shapers, separated by commas")
	rateList := flags.String("rates", "40mbit", "bandwidths, separated by commas")
	queueList := flags.String("queues", "8", "numbers of transmit queues, separated by commas")
	flags.IntVar(&o.plan.Repeat, "repeat", 1, "how often to run each")
	flags.BoolVar(&o.plan.Brief, "brief", false, "leave out what adds least: most repetitions, other rates of minor experiments, and most runs of shapers that hold no rate")
	flags.DurationVar(&o.plan.Duration, "duration", 5*time.Second, "measured time of a run")
	flags.DurationVar(&o.plan.Warmup, "warmup", time.Second, "time under load before that")
	flags.StringVar(&o.plan.Diffserv, "diffserv", "diffserv4", "preset of tins, for the shapers that have tins")
	flags.StringVar(&o.lane, "lane", "newest", "kernel of the VM: "+strings.Join(vm.Lanes(), ", "))
	flags.IntVar(&o.smp, "smp", 1, "CPUs of the VM; they take turns, so that more of them add delays")
	flags.BoolVar(&o.native, "native", false, "run on this machine's kernel, as root")
	flags.BoolVar(&o.realTime, "real-time", false, "let the VM's clock follow the host's instead of counting instructions")
	flags.IntVar(&o.jobs, "jobs", 2, "how many VMs run at once: one runs the runs of an experiment")
	flags.IntVar(&o.seed, "seed", 1, "seed of a VM's random numbers, by which flows hash alike in two runs; 0 for other ones each time")
	flags.DurationVar(&o.patience, "patience", 3*time.Minute, "time beyond that of a run after which its VM is taken for hung: a busy host emulates slowly")
	flags.StringVar(&o.output.report, "report", "", "`directory` for a report with pictures")
	flags.StringVar(&o.output.readme, "readme", "", "`file` whose table to replace")
	flags.StringVar(&o.from, "from", "", "`file` of results to print or publish, instead of running anything")
	flags.BoolVar(&o.compare, "compare", false, "compare the medians of two files of results, instead of running anything")
	flags.BoolVar(&o.list, "list", false, "list experiments and shapers")
	flags.StringVar(&o.output.json, "json", "", "`file` for every single result")
	flags.BoolVar(&o.plan.Details, "details", false, "with -json: keep what each shaper's own tools say at the end of a run")
	flags.StringVar(&o.plain, "plan", "", "run the plan in this `file` and print rows (what runs in the VM)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.compare {
		o.files = flags.Args()
		return o, nil
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
	case o.compare:
		return compare(o.files, stdout)
	case o.from != "":
		results, err := experiments.ReadResults(o.from)
		if err != nil {
			return err
		}
		return o.output.write(results, stdout)
	case o.list:
		return list(stdout)
	case o.plain != "":
		return runPlan(ctx, o.plain, stdout)
	}
	dir, err := os.MkdirTemp("", "cakectl-lab-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l := laboratory{options: o, cakectl: filepath.Join(dir, "cakectl"), lab: filepath.Join(dir, "lab"), stderr: stderr, begun: time.Now()}
	if err := build(ctx, modulePath+"/cmd/cakectl", l.cakectl, stderr); err != nil {
		return err
	}
	if o.native {
		err = l.runNatively(ctx)
	} else {
		err = l.runVMs(ctx, dir)
	}
	return errors.Join(err, l.publish(ctx, args, stdout))
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
