// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cakectl/cakectl/internal/sdnotify"
	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/daemon"
)

func (a *app) serveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Shape all devices of a configuration file, in one process",
		Long: `Shape the devices of a configuration file, and serve metrics and other cakectl commands for
all of them. A device that is not there yet is waited for; one that cannot be attached is
tried again, and holds up no other. SIGHUP reads the file again: new devices are attached,
changed ones changed, those that it does not have any more detached. A file with mistakes
is not applied at all.

Shaping goes on when the process ends, and the next one adopts it without a gap; devices
with "keep: false" are detached. Devices that were attached by hand are served too.`,
		Example: `  cakectl check /etc/cakectl.yaml
  cakectl serve -c /etc/cakectl.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return invalid("serve: no configuration file given: -c FILE")
			}
			return a.serve(cmd.Context(), file)
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration `file`")
	return cmd
}

func (a *app) serve(ctx context.Context, path string) (err error) {
	file, err := config.ReadFile(path)
	if err != nil {
		return err
	}
	if err := requireCapabilities("serve", path); err != nil {
		return err
	}
	takeSmallPages()
	claim, err := api.Listen(a.env.RunDir, api.AllDevices)
	if errors.Is(err, api.ErrServed) {
		if _, err := a.host().Devices(ctx); isElsewhere(err) {
			return prefix("serve", path, err)
		}
		return errors.New("serve: another cakectl serve is running: hand it the file with cakectl apply")
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	metricsListener, err := listenForMetrics(file.MetricsAddress, "metrics: ADDR")
	if err != nil {
		return prefix("serve", path, err)
	}
	s := &server{app: a, path: path, metrics: file.MetricsAddress}
	return s.run(ctx, file, claim, metricsListener)
}

// server is what serve is while it runs.
type server struct {
	app     *app
	path    string
	metrics string // the address in use
	daemon  *daemon.Daemon
}

func (s *server) run(ctx context.Context, file config.File, claim *api.Listener, metricsListener net.Listener) error {
	// A reader of our output that goes away must not take the shaping with it.
	signal.Ignore(syscall.SIGPIPE)
	reload, stop := takeHangups(ctx)
	defer stop()

	group, ctx := errgroup.WithContext(ctx)
	s.daemon = daemon.New(ctx, s.app.env.RunDir, s.app.netns, s.app.shapers, build(), s.app.env.Log)
	group.Go(func() error {
		return claim.Serve(ctx, api.Server{Host: s.daemon, Classify: daemon.KindOf, Netns: s.app.netns, Log: s.app.env.Log})
	})
	if metricsListener != nil {
		s.app.say("metrics on http://%s/metrics", metricsListener.Addr())
		group.Go(func() error { return s.daemon.Collector().Serve(ctx, metricsListener) })
	}
	group.Go(func() error {
		outcomes, err := s.daemon.Start(ctx, file.Devices)
		if err != nil {
			return err
		}
		printOutcomes(s.app, outcomes)
		s.app.say("serving %s of %s", count(len(file.Devices), "device"), s.path)
		tidyUp()
		s.notify(sdnotify.Ready)
		for {
			select {
			case <-ctx.Done():
				s.notify(sdnotify.Stopping)
				return nil
			case <-reload:
				s.reload(ctx)
			}
		}
	})
	err := group.Wait()
	s.daemon.Wait()
	return err
}

// reload applies the file again; one with mistakes is only told of.
func (s *server) reload(ctx context.Context) {
	s.notify(sdnotify.Reloading)
	defer s.notify(sdnotify.Ready)
	var outcomes []api.Outcome
	file, err := config.ReadFile(s.path)
	if err == nil {
		if outcomes, err = s.daemon.Apply(ctx, file.Devices); err == nil {
			printOutcomes(s.app, outcomes)
		}
	}
	s.daemon.Collector().Reloaded(err == nil)
	if err != nil {
		mistakes := mistakes(err)
		for _, mistake := range mistakes {
			s.app.env.Log.Error("not reloaded", "err", oneLine(mistake.Error()))
		}
		s.app.env.Log.Error("not reloaded; everything stays as it is", "file", s.path, "mistakes", len(mistakes))
		return
	}
	s.app.say("read %s again: %s", s.path, summary(outcomes))
	if file.MetricsAddress != s.metrics {
		s.app.env.Log.Warn("another metrics address takes a restart", "in_use", s.metrics, "wanted", file.MetricsAddress)
	}
}

func (s *server) notify(state sdnotify.State) {
	if err := sdnotify.Notify(state); err != nil {
		s.app.env.Log.Warn("systemd was not told", "err", err)
	}
}

// printOutcomes says what became of each device, and how many failed.
func printOutcomes(a *app, outcomes []api.Outcome) (failed int) {
	for _, o := range outcomes {
		switch o.Result {
		case api.ResultFailed:
			failed++
			if o.Attached {
				a.say("%s: not changed, and shaped as before: %s", o.Device, oneLine(o.Error.Message))
			} else {
				a.say("%s: failed: %s", o.Device, oneLine(o.Error.Message))
			}
		case api.ResultChanged:
			a.say("%s: changed: %s; effective rates written: %d", o.Device, strings.Join(o.Changes, ", "), o.RateWrites)
		case api.ResultWaiting:
			a.say("%s: waiting: there is no such device yet", o.Device)
		case api.ResultUnderWay:
			a.say("%s: still at it: cakectl status %[1]s tells what becomes of it", o.Device)
		case api.ResultDetached:
			a.say("%s: detached, and as it was found", o.Device)
		case api.ResultGivenUp:
			a.say("%s: not waited for any more", o.Device)
		default:
			a.say("%s: %s", o.Device, o.Result)
		}
	}
	return failed
}

// summary counts outcomes: "1 changed, 2 unchanged".
func summary(outcomes []api.Outcome) string {
	var parts []string
	for _, result := range []api.Result{api.ResultAttached, api.ResultChanged, api.ResultUnchanged, api.ResultDetached, api.ResultGivenUp, api.ResultWaiting, api.ResultUnderWay, api.ResultFailed} {
		n := 0
		for _, o := range outcomes {
			if o.Result == result {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(result), "_", " ")))
		}
	}
	return strings.Join(parts, ", ")
}

func (a *app) applyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "apply FILE",
		Short: "Have the running serve shape as a configuration file says",
		Long: `Check a configuration file and hand it to the running cakectl serve: new devices are
attached, changed ones changed while traffic flows, and those that came from a file and
are not in this one are detached. What became of each device is told.

The file that serve was started with stays the one it reads again at SIGHUP and after a
restart.`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error { return a.apply(cmd.Context(), args[0]) },
	}
}

func (a *app) apply(ctx context.Context, path string) error {
	file, err := config.ReadFile(path)
	if err != nil {
		return err
	}
	outcomes, err := a.host().Apply(ctx, file.Devices)
	if errors.Is(err, api.ErrNoDaemon) {
		return fmt.Errorf("apply %s: no cakectl serve is running: start it with cakectl serve -c %[1]s", path)
	}
	if err != nil {
		return err
	}
	if failed := printOutcomes(a, outcomes); failed > 0 {
		return fmt.Errorf("apply %s: %s failed", path, count(failed, "device"))
	}
	return nil
}
