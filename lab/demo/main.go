// SPDX-License-Identifier: BSD-2-Clause

// Command demo shows what cakectl does: it shapes real traffic on a pair of veth devices with 32
// queues, by the program itself and the commands that a user types, and measures at the receiver.
//
//	go run ./lab/demo
//
// It runs in namespaces of its own where the kernel has sch_fq, else in a virtual machine (see
// package vm; -vm takes that in any case), and draws a picture of throughput by tin. It is a test as
// well: its exit status is 1 if anything was not as it has to be.
//
// The clock of the virtual machine counts instructions, one a nanosecond, so that what is measured
// does not depend on what else the host does; its seconds are longer than the host's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cakectl/cakectl/internal/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return
	case err != errSaid:
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	os.Exit(1)
}

// errSaid is a failure that a part has told about already, or that the whole will.
var errSaid = errors.New("a part of the demo failed")

// also adds an error of cleaning up.
func also(err, cleanup error) error {
	switch {
	case cleanup == nil:
		return err
	case err == nil, err == errSaid:
		return cleanup
	default:
		return errors.Join(err, cleanup)
	}
}

// options are the command line.
type options struct {
	lane     string
	forceVM  bool
	pictures string
	copySVG  string

	// Of the parts of the demo that run as processes of their own.
	part, cakectl, recording string
}

// Parts, each started by the one before; the whole is that without a name.
const (
	partPerform = "perform" // makes mount namespaces for the stage
	partStage   = "stage"   // is in them
)

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.lane, "lane", "newest", "kernel of the virtual machine: "+strings.Join(vm.Lanes(), ", "))
	flags.BoolVar(&o.forceVM, "vm", false, "use the virtual machine even where this kernel has sch_fq")
	flags.StringVar(&o.pictures, "pictures", filepath.Join("lab", "report"), "`directory` for demo.svg and demo.png")
	flags.StringVar(&o.copySVG, "copy", "", "`file` for another copy of the SVG")
	flags.StringVar(&o.part, "part", "", "run a part of the demo: for the demo itself")
	flags.StringVar(&o.cakectl, "cakectl", "", "the program, for a part")
	flags.StringVar(&o.recording, "recording", "", "`file` for what a part measured")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	switch o.part {
	case partPerform:
		err = perform(ctx, o.cakectl, o.recording, stdout)
	case partStage:
		err = runStage(ctx, o.cakectl, o.recording, stdout)
	case "":
		err = whole(ctx, o, stdout)
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	default:
		err = fmt.Errorf("there is no part %q", o.part)
	}
	return err
}

// whole is the demo: it finds a place, has the stage performed there, and shows what came of it.
func whole(ctx context.Context, o options, stdout io.Writer) (err error) {
	start := time.Now()
	dir, err := os.MkdirTemp("", "cakectl-demo-")
	if err != nil {
		return err
	}
	defer func() { err = also(err, os.RemoveAll(dir)) }()
	reason := "as asked for"
	if !o.forceVM {
		reason = lacking()
	}
	var recording recording
	if reason == "" {
		recording, err = natively(ctx, dir, stdout)
	} else {
		recording, err = virtually(ctx, o.lane, reason, dir, stdout)
	}
	if err != nil {
		return err
	}
	files, err := recording.draw(o.pictures, o.copySVG)
	if err != nil {
		return err
	}
	failed := recording.summarize(stdout)
	for _, file := range files {
		fmt.Fprintf(stdout, "picture: %s\n", file)
	}
	fmt.Fprintf(stdout, "the demo took %v\n", time.Since(start).Round(time.Second))
	if failed > 0 {
		return fmt.Errorf("%d of %d measurements are not as they have to be", failed, len(recording.Checks))
	}
	return nil
}
