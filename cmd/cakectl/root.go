// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/semaphore"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// Exit statuses; scripts rely on them.
const (
	exitDone         = 0
	exitInvalid      = 1 // usage or configuration
	exitFailed       = 2 // the kernel refused
	exitNotEnforcing = 3 // attached but not enforcing
	exitNotAttached  = 4
)

// errNotEnforcing ends a status that was printed and is a bad one.
var errNotEnforcing = errors.New("not enforcing")

// app is one run of the command.
type app struct {
	stdout, stderr io.Writer
	shapersFor     func(shaper.Env) daemon.Shapers

	// Set from the flags before a verb starts.
	env     shaper.Env
	shapers daemon.Shapers
	netns   uint64 // 0 where it cannot be told
	started bool
}

// run executes a command line and returns the exit status. ctx ends what is under way; everything
// is undone then.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, shapersFor func(shaper.Env) daemon.Shapers) int {
	a := &app{stdout: stdout, stderr: stderr, shapersFor: shapersFor}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNotEnforcing):
		return exitNotEnforcing
	case !a.started:
		// The command line was not understood.
		a.complain("%v (see %s --help)", err, command.CommandPath())
		return exitInvalid
	}
	if text := err.Error(); oneLine(text) != text {
		a.env.Log.Debug("failed", "err", text)
	}
	var signal interrupted
	if errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &signal) {
		a.complain("%v: %v", signal, err)
		return signal.exitStatus()
	}
	missing := missingCapabilities()
	for _, mistake := range mistakes(err) {
		if errors.Is(mistake, fs.ErrPermission) && len(missing) > 0 {
			mistake = fmt.Errorf("%w (missing %s; run it as root)", mistake, strings.Join(missing, ", "))
		}
		a.complain("%v", mistake)
	}
	switch daemon.KindOf(err) {
	case api.KindInvalid:
		return exitInvalid
	case api.KindNotAttached, api.KindAwaited:
		return exitNotAttached
	default:
		return exitFailed
	}
}

// mistakes are the errors in a configuration file, or why an attach would fail, which are told one a line.
// Every other error is one.
func mistakes(err error) []error {
	if all, ok := err.(refusals); ok {
		return all
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	for _, e := range joined.Unwrap() {
		var inFile *config.FileError
		if !errors.As(e, &inFile) {
			return []error{err}
		}
	}
	return joined.Unwrap()
}

// invalidError is a [config.ErrInvalid] of the command line.
type invalidError struct{ message string }

func (e *invalidError) Error() string        { return e.message }
func (e *invalidError) Is(target error) bool { return target == config.ErrInvalid }

func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

// complain prints an error on one line.
func (a *app) complain(format string, args ...any) {
	fmt.Fprintln(a.stderr, "cakectl: "+oneLine(fmt.Sprintf(format, args...)))
}

// An error of more lines than this is not a list of what failed, but a report: the one of the
// kernel's verifier has thousands of lines. How it begins and how it ends says the most.
const (
	maxErrorLines = 8
	lastLines     = 3
)

// oneLine puts the parts of a joined error behind each other.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	if left := len(lines) - 1 - lastLines; len(lines) > maxErrorLines {
		lines = slices.Concat(lines[:1], []string{fmt.Sprintf("... %d lines, which --log-level debug shows", left)}, lines[len(lines)-lastLines:])
	}
	return strings.Join(lines, "; ")
}

// say prints what was done. An error of the terminal is no reason to stop shaping.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.stdout, format+"\n", args...) }

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "cakectl",
		Short: "Shape the traffic of multi-queue NICs",
		Long: `cakectl shapes the traffic of multi-queue NICs: an eBPF program gives every packet its
departure time, one fq per transmit queue keeps it until then. Traffic is sorted into
tins as by CAKE, each with its own rate, which can be changed while it flows.

Rates are in bits per second: 800kbit, 2.5gbit, 100Mibit; 50% of the link's speed (or,
for a tin, of the bandwidth); unlimited.

Exit status: 0 done, 1 usage or configuration, 2 the kernel refused,
3 attached but not enforcing, 4 not attached.`,
		Example: `  cakectl attach eth0 --bandwidth 2gbit
  cakectl set eth0 --bandwidth 1gbit --tin bulk=ceil:10%
  cakectl status eth0
  cakectl detach eth0`,
		Args:          unknownCommand,
		RunE:          showHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	logLevel := flags.String("log-level", "info", "log to standard error from this `level` up: debug, info, warn, error")
	logFormat := flags.String("log-format", "text", "`format` of the log: text or json")
	bpffs := flags.String("bpffs", shaper.DefaultBPFFS, "`directory` for pins, on a BPF file system")
	runDir := flags.String("run-dir", shaper.DefaultRunDir, "`directory` for records, locks and sockets")
	hook := flags.String("hook", "", "egress `hook`: tcx or clsact; empty takes tcx where the kernel has it")
	for _, hidden := range []string{"bpffs", "run-dir", "hook"} {
		flags.Lookup(hidden).Hidden = true
	}
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		log, err := newLogger(a.stderr, *logLevel, *logFormat)
		if err != nil {
			return err
		}
		switch h := loader.Hook(*hook); h {
		case "", loader.TCX, loader.Clsact:
		default:
			return fmt.Errorf("unknown hook %q: want %s or %s", h, loader.TCX, loader.Clsact)
		}
		a.env = shaper.Env{
			BPFFS: *bpffs, RunDir: *runDir, Hook: loader.Hook(*hook), Log: log,
			Loads: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))),
		}
		a.shapers = a.shapersFor(a.env)
		if a.netns, err = shaper.Netns(); err != nil {
			log.Debug("any daemon will do", "err", err)
		}
		a.started = true
		return nil
	}
	root.AddCommand(a.attachCommand(), a.setCommand(), a.statusCommand(), a.detachCommand(),
		a.serveCommand(), a.applyCommand(), a.checkCommand(), a.doctorCommand(), a.topCommand(), a.versionCommand())
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(flagError)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 90"))
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = unknownCommand, showHelp
		}
	}
	return root
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var options slog.HandlerOptions
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("unknown log level %q: want debug, info, warn or error", level)
	}
	options.Level = l
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	default:
		return nil, fmt.Errorf("unknown log format %q: want text or json", format)
	}
}

// unknownCommand complains about what is no verb, on one line.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var verbs []string
	for _, c := range cmd.Commands() {
		verbs = append(verbs, c.Name())
	}
	if near := nearNames(args[0], verbs); len(near) > 0 {
		return fmt.Errorf("unknown command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// flagError says what a flag wants, and not which function of the Go library did not get it.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		return unknownFlag(cmd, unknown.GetSpecifiedName())
	}
	var value *pflag.InvalidValueError
	if !errors.As(err, &value) {
		return err
	}
	want, ok := map[string]string{"bool": "true or false", "int": "a number", "duration": "a time with its unit, such as 3s"}[value.GetFlag().Value.Type()]
	if !ok {
		return err
	}
	return fmt.Errorf("invalid argument %q for --%s: want %s", value.GetValue(), value.GetFlag().Name, want)
}

// unknownFlag says what may have been meant: another flag, one of another verb, or a verb.
func unknownFlag(cmd *cobra.Command, name string) error {
	var flags, verbs []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f.Name)
		}
	})
	if near := nearNames(name, flags); len(near) > 0 {
		return fmt.Errorf("unknown flag: --%s; did you mean --%s?", name, strings.Join(near, " or --"))
	}
	for _, c := range cmd.Root().Commands() {
		switch {
		case c.Name() == name:
			return fmt.Errorf("unknown flag: --%s; did you mean %s?", name, c.CommandPath())
		case c.LocalNonPersistentFlags().Lookup(name) != nil:
			verbs = append(verbs, c.Name())
		}
	}
	if len(verbs) > 0 {
		return fmt.Errorf("unknown flag: --%s: one of %s, not of %s", name, strings.Join(verbs, " and "), cmd.Name())
	}
	return fmt.Errorf("unknown flag: --%s", name)
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// helpCommand is cobra's, but complains about what it does not know.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		Args: func(cmd *cobra.Command, args []string) error {
			_, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) > 0 {
				return unknownCommand(cmd.Root(), rest)
			}
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			target, _, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			return target.Help()
		},
	}
}

// oneDevice wants exactly the device as argument.
func oneDevice(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0, args[0] == "":
		return errors.New("no device given")
	case len(args) > 1:
		return fmt.Errorf("unexpected argument %q: one device at a time", args[1])
	}
	return nil
}
