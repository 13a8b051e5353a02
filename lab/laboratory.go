// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/vm"
	"github.com/cakectl/cakectl/lab/experiments"
)

// modulePath is where the programs' sources are, whatever directory this is run in.
const modulePath = "github.com/cakectl/cakectl"

// laboratory runs a plan and collects the rows.
type laboratory struct {
	options
	cakectl, lab string // the programs, on the host
	stderr       io.Writer

	begun time.Time

	mu     sync.Mutex
	kernel string
	rows   []experiments.Row
}

// collect takes a row and shows how far it all is.
func (l *laboratory) collect(row experiments.Row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = append(l.rows, row)
	status := "ok"
	if row.Error != "" {
		status = "BROKEN: " + row.Error
	}
	fmt.Fprintf(l.stderr, "%s %s %s %v %dq run %d: %s\n", progress(len(l.rows), len(l.plan.Runs()), time.Since(l.begun)), row.Experiment, row.Peer, row.Rate, row.Queues, row.Repeat+1, status)
}

// progress is how much of all is done, and how long it took.
func progress(done, all int, took time.Duration) string {
	text := fmt.Sprintf("%d/%d after %v", done, all, took.Round(time.Second))
	if done < all {
		text += fmt.Sprintf(", %v to go:", (took / time.Duration(done) * time.Duration(all-done)).Round(time.Minute))
	} else {
		text += ":"
	}
	return text
}

func (l *laboratory) runNatively(ctx context.Context) (err error) {
	l.plan.Cakectl = l.cakectl
	if l.kernel, err = kernelRelease(); err != nil {
		return err
	}
	return l.plan.Run(ctx, l.collect)
}

// runVMs runs each experiment in a VM of its own, so that one that goes wrong takes no other with it.
// It leaves files in dir.
func (l *laboratory) runVMs(ctx context.Context, dir string) error {
	if err := build(ctx, modulePath+"/lab", l.lab, l.stderr); err != nil {
		return err
	}
	l.plan.Cakectl = guestCakectl
	var counted, timed []string
	for _, name := range l.plan.Experiments {
		e, err := experiments.Lookup(name)
		if err != nil {
			return err
		}
		if l.realTime || e.Network == experiments.Virtio {
			timed = append(timed, name)
		} else {
			counted = append(counted, name)
		}
	}
	err := l.runGroup(ctx, dir, counted, l.jobs)
	// What goes by the host's clock has the host for itself.
	return errors.Join(err, l.runGroup(ctx, dir, timed, 1))
}

// runGroup runs experiments, so many at once. One that goes wrong is in the rows; it stops no other.
func (l *laboratory) runGroup(ctx context.Context, dir string, names []string, jobs int) error {
	var group errgroup.Group
	group.SetLimit(jobs)
	for _, name := range names {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			plan := l.plan
			plan.Experiments = []string{name}
			if err := l.runVM(ctx, plan, filepath.Join(dir, name)); err != nil {
				l.giveUp(plan, err)
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// giveUp makes the rows of a plan that are not there broken ones.
func (l *laboratory) giveUp(plan experiments.Plan, err error) {
	for _, run := range plan.Runs() {
		l.mu.Lock()
		there := slices.ContainsFunc(l.rows, func(r experiments.Row) bool { return r.Run == run })
		l.mu.Unlock()
		if !there {
			l.collect(experiments.Row{Run: run, Error: err.Error()})
		}
	}
}

// runVM runs a plan in a VM. It leaves files in dir, which it makes.
func (l *laboratory) runVM(ctx context.Context, plan experiments.Plan, dir string) error {
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	planFile := filepath.Join(dir, "plan.json")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(planFile, text, 0o644)); err != nil {
		return err
	}
	config := vm.Config{
		Lane:   l.lane,
		SMP:    l.smp,
		ICount: !l.realTime,
		Seed:   l.seed,
		Files:  map[string]string{guestLab: l.lab, guestCakectl: l.cakectl, guestPlan: planFile},
		Steps:  []vm.Step{{Command: []string{guestLab, "-plan", guestPlan}}},
		Log:    slog.New(slog.NewTextHandler(l.stderr, nil)),
	}
	e, err := experiments.Lookup(plan.Experiments[0])
	if err != nil {
		return err
	}
	config.SMP = max(config.SMP, e.CPUs())
	if e.Network == experiments.Virtio {
		config.VirtioQueues = e.Queues[0]
	}
	// The more CPUs take turns, the longer it takes to boot.
	limit := plan.Warmup + plan.Duration + l.patience*time.Duration(1+e.CPUs()/4)
	config.Timeout = limit * time.Duration(1+len(plan.Runs()))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hung := time.AfterFunc(limit, func() { cancel(fmt.Errorf("the VM hangs: no result for %v", limit)) })
	defer hung.Stop()
	config.Stdout = &rowReader{other: l.stderr, emit: func(row experiments.Row) {
		hung.Reset(limit)
		l.collect(row)
	}}
	result, err := vm.Run(ctx, config)
	l.mu.Lock()
	l.kernel = cmp.Or(l.kernel, result.KernelRelease)
	l.mu.Unlock()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	for _, warning := range result.Warnings {
		fmt.Fprintln(l.stderr, "the guest's kernel says:", warning)
	}
	if code := result.ExitCode(); code != 0 {
		return fmt.Errorf("the runner in the VM ended with status %d", code)
	}
	return nil
}

// build makes a static program of a package.
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

// publish prints the tables, writes what was asked for, and says what is broken.
func (l *laboratory) publish(ctx context.Context, args []string, stdout io.Writer) error {
	results := experiments.Results{
		Command: append([]string{"go", "run", "./lab"}, args...), Kernel: l.kernel, Versions: versions(ctx),
		Time: time.Now().UTC(), Plan: l.plan, Rows: l.rows,
	}
	results.Sort()
	return l.output.write(results, stdout)
}

// versions are those of the programs that the lab measures, and measures with. A run that was interrupted
// has them too.
func versions(ctx context.Context) map[string]string {
	found := map[string]string{}
	for name, command := range map[string][]string{
		"cakectl":  {"git", "describe", "--tags", "--always", "--dirty"},
		"iproute2": {"tc", "-V"},
		"iperf3":   {"iperf3", "--version"},
		"qemu":     {"qemu-system-x86_64", "--version"},
	} {
		text, err := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...).Output()
		first, _, _ := strings.Cut(string(text), "\n")
		if err != nil {
			first = "unknown"
		}
		found[name] = first
	}
	return found
}

// kernelRelease is this machine's uname -r.
func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}
