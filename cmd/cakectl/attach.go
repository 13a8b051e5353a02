// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/doctor"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/shaper"
	"github.com/cakectl/cakectl/pkg/tins"
)

// warnOfStacked tells where a device's packets wait in the queues of others. It shapes all the same.
func (a *app) warnOfStacked(device string) {
	stacked, err := doctor.Stacked(device)
	switch {
	case err != nil:
		a.env.Log.Warn("not known whether others hold its packets", "device", device, "err", err)
	case stacked != nil:
		a.complain("warning: %s: %s: better %s", device, stacked.Detail, stacked.Remedy)
	}
}

// attachFlags are what attach can be asked for.
type attachFlags struct {
	changeFlags
	diffserv, metrics     string
	keep, replace, dryRun bool
	checkQueues           bool
	flows                 int
}

func (a *app) attachCommand() *cobra.Command {
	var flags attachFlags
	cmd := &cobra.Command{
		Use:   "attach DEV --bandwidth RATE [flags]",
		Short: "Shape a device, and serve it in the foreground",
		Long: `Shape the traffic that a device sends. The command stays in the foreground: it keeps the
rates of the queues in step with the traffic and serves metrics and other cakectl
commands. Ctrl-C detaches the device and leaves it as it was found; with --keep the
shaping goes on without a process.

A device that is shaped already is adopted, without a gap; --bandwidth can be left out
then, and what is given is changed. If another cakectl serves the device, the change is
handed to that one; if cakectl serve is running, it takes the device, and this command
ends.`,
		Example: `  cakectl attach eth0 --bandwidth 2gbit
  cakectl attach eth0 --bandwidth 95% --tin voice=rate:20mbit --tin bulk=ceil:10%
  cakectl attach eth0 --bandwidth 2gbit --dry-run`,
		Args:              oneDevice,
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := flags.request(cmd)
			if err != nil {
				return prefix("attach", args[0], err)
			}
			if request.device, err = findDevice(args[0]); err != nil {
				return err
			}
			a.warnOfStacked(request.device)
			if request.dryRun {
				return a.dryRun(cmd.Context(), request)
			}
			return a.attach(cmd.Context(), request)
		},
	}
	flags.register(cmd)
	f := cmd.Flags()
	for flag, value := range map[string]string{"split": string(rates.SplitFlows), "isolation": string(config.IsolateFlows), "rtt": config.DefaultRTT.String(), "on-drift": string(config.DriftRepair)} {
		f.Lookup(flag).DefValue = value // shown in the help
	}
	f.StringVar(&flags.diffserv, "diffserv", string(tins.Default), "`preset` of tins: "+strings.Join(presetNames(), ", "))
	f.IntVar(&flags.flows, "flows", 0, "`number` of flows of a tin that each queue has room for: a power of two; 1024 if not given, less where that would be much memory")
	f.StringVar(&flags.metrics, "metrics", config.DefaultMetricsAddress, "`address` to serve Prometheus metrics on, or none; without the flag, none where another process has the default")
	f.BoolVar(&flags.keep, "keep", false, "leave the shaping on when this process ends")
	f.BoolVar(&flags.replace, "replace", false, "take the place of a qdisc that is not the kernel's default; detach restores it")
	f.BoolVar(&flags.checkQueues, "check-queues", false, "compare the queues that are foreseen with those that packets go to, for status and metrics")
	f.BoolVar(&flags.dryRun, "dry-run", false, "show the settings, what would be done and what is in the way, do nothing, and end with the exit status that attach would")
	completeWords(cmd, "diffserv", presetNames()...)
	completeWords(cmd, "metrics", config.DefaultMetricsAddress, config.MetricsNone)
	return cmd
}

// request is what an attach asks for, before it is known whether the device is attached already.
type request struct {
	device string
	change config.Change
	preset tins.Preset // "" if not given

	metricsAddress        string
	metricsGiven          bool
	keep, replace, dryRun bool
	checkQueues           bool
	flows                 int // 0 if not given
	// processFlags names the given flags that concern the process and not the device.
	processFlags []string
}

func (f *attachFlags) request(cmd *cobra.Command) (r request, err error) {
	r = request{metricsAddress: f.metrics, keep: f.keep, replace: f.replace, dryRun: f.dryRun, checkQueues: f.checkQueues, flows: f.flows}
	r.metricsGiven = cmd.Flags().Changed("metrics")
	if r.change, err = f.change(cmd); err != nil {
		return r, err
	}
	if cmd.Flags().Changed("diffserv") {
		if r.preset, err = config.ParsePreset(f.diffserv); err != nil {
			return r, err
		}
	}
	r.change.Replace = r.replace
	for _, flag := range []string{"metrics", "keep", "check-queues"} {
		if cmd.Flags().Changed(flag) {
			r.processFlags = append(r.processFlags, "--"+flag)
		}
	}
	return r, nil
}

// spec completes the request, checked as far as that goes without the link's speed. found is what
// the device is shaped to already, nil if it is not attached.
func (r request) spec(found *config.Spec) (config.Spec, error) {
	base := config.New(r.device, rates.Value{})
	if found != nil {
		base = *found
		base.Device = r.device // which may have been renamed since
		if err := r.checkFixed(base.Preset, base.Flows); err != nil {
			return config.Spec{}, err
		}
	} else if r.change.Bandwidth == nil {
		return config.Spec{}, invalid("no bandwidth given: it is not attached yet and needs --bandwidth RATE")
	}
	if r.preset != "" {
		base.Preset = r.preset
	}
	base.MetricsAddress, base.Keep, base.Replace = r.metricsAddress, r.keep, r.replace
	base.CheckQueues = r.checkQueues
	base.Flows = cmp.Or(r.flows, base.Flows)
	spec, err := base.Apply(r.change)
	if err != nil {
		return config.Spec{}, err
	}
	spec.Tins = withResets(spec.Tins, r.change.Tins)
	return spec, nil
}

// withResets adds what a change resets to the overrides that it leaves. Adopting a device applies
// its spec as a change, where only what is named changes.
func withResets(overrides, change []config.TinOverride) []config.TinOverride {
	for _, c := range change {
		if !c.RateDefault && !c.CeilNone {
			continue
		}
		i := slices.IndexFunc(overrides, func(o config.TinOverride) bool { return o.Name == c.Name })
		if i < 0 {
			overrides = append(overrides, c)
			continue
		}
		overrides[i].RateDefault, overrides[i].CeilNone = c.RateDefault, c.CeilNone
	}
	return overrides
}

// checkFixed refuses to change what cannot change while a device is attached.
func (r request) checkFixed(preset tins.Preset, flows int) error {
	if r.preset != "" && r.preset != preset {
		return invalid("it is attached with %s, and tins cannot change under traffic: detach it first", preset)
	}
	if r.flows != 0 && r.flows != flows {
		return invalid("it is attached with room for %d flows a queue and tin, which cannot change under traffic: detach it first", flows)
	}
	return nil
}

// prefix says what was being done when a check failed that knows nothing of it.
func prefix(verb, device string, err error) error {
	return fmt.Errorf("%s %s: %w", verb, device, err)
}

// claimTries bounds how often attach looks for a daemon that ends, or starts, in just that moment.
const claimTries = 20

func (a *app) attach(ctx context.Context, r request) error {
	for try := 1; ; try++ {
		err := a.attachThroughDaemon(ctx, r)
		if errors.Is(err, api.ErrNoDaemon) {
			err = a.attachThroughServe(ctx, r)
		}
		if !errors.Is(err, api.ErrNoDaemon) {
			return err
		}
		err = a.attachHere(ctx, r)
		if !errors.Is(err, api.ErrServed) || try == claimTries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// attachThroughDaemon hands the request to the daemon of the device. It returns [api.ErrNoDaemon]
// if there is none.
func (a *app) attachThroughDaemon(ctx context.Context, r request) error {
	client, status, err := a.daemonOf(ctx, r)
	if err != nil {
		return err
	}
	a.say("%s: is attached and served by process %d; handing it the change", r.device, status.Daemon)
	if len(r.processFlags) > 0 {
		a.say("%s: %s of that process stays as it is", r.device, strings.Join(r.processFlags, " and "))
	}
	return a.applyChange(ctx, client, r.change)
}

// daemonOf finds the daemon of the device that a request is for, and sees whether it could grant it.
func (a *app) daemonOf(ctx context.Context, r request) (*api.Client, api.Status, error) {
	recorded, err := a.shapers.Recorded(r.device)
	if err != nil {
		return nil, api.Status{}, err
	}
	if pid := a.shapers.Stopped(recorded); pid != 0 {
		return nil, api.Status{}, prefix("attach", r.device, stopped(pid))
	}
	client := a.client(recorded)
	status, err := client.Status(ctx)
	if err != nil {
		return nil, api.Status{}, err
	}
	if err := r.checkFixed(tins.Preset(status.Diffserv), status.Flows); err != nil {
		return nil, api.Status{}, prefix("attach", r.device, err)
	}
	return client, status, nil
}

// attachThroughServe hands the device to the daemon of many. It returns [api.ErrNoDaemon] if there is
// none.
func (a *app) attachThroughServe(ctx context.Context, r request) error {
	host := a.host()
	if _, err := host.Devices(ctx); isElsewhere(err) {
		return api.ErrNoDaemon
	} else if err != nil {
		return err
	}
	found, err := a.attachedSpec(r.device)
	if err != nil {
		return err
	}
	r.metricsAddress = config.MetricsNone
	spec, err := r.spec(found)
	if err != nil {
		return prefix("attach", r.device, err)
	}
	outcome, err := host.Attach(ctx, spec)
	if err != nil {
		return err
	}
	printOutcomes(a, []api.Outcome{outcome})
	if outcome.Result != api.ResultAttached {
		return nil
	}
	status, err := a.client(r.device).Status(ctx)
	if err != nil {
		return err
	}
	a.say("%s: %s", r.device, shapedTo(status))
	a.say("%s: %s", r.device, tinRates(status))
	a.say("%s: cakectl serve, process %d, serves it and its metrics", r.device, status.Daemon)
	return nil
}

// attachHere makes this process the daemon of the device.
func (a *app) attachHere(ctx context.Context, r request) (err error) {
	found, err := a.attachedSpec(r.device)
	if err != nil {
		return err
	}
	spec, err := r.spec(found)
	if err != nil {
		return prefix("attach", r.device, err)
	}
	if err := requireCapabilities("attach", r.device); err != nil {
		return err
	}
	recorded, err := a.shapers.Recorded(r.device)
	if err != nil {
		return err
	}
	if err := a.unasked(ctx, recorded); err != nil {
		return prefix("attach", r.device, err)
	}
	takeSmallPages()
	claim, err := api.Listen(a.env.RunDir, recorded)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	metricsListener, err := a.listenForMetricsOf(r)
	if err != nil {
		return err
	}
	device, err := a.shapers.Attach(ctx, spec)
	if err != nil {
		if metricsListener != nil {
			metricsListener.Close()
		}
		return err
	}
	return newForeground(a, r.device, device).serve(ctx, claim, metricsListener, r.keep)
}

// attachedSpec is what a device is shaped to, or nil.
func (a *app) attachedSpec(device string) (*config.Spec, error) {
	s, err := a.shapers.Open(device)
	if errors.Is(err, shaper.ErrNotAttached) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	spec := s.Spec()
	return &spec, s.Close()
}

// listenForMetricsOf is [listenForMetrics] for one device. It is shaped without metrics where another
// process, such as the attach of another device, has the address that nobody asked for.
func (a *app) listenForMetricsOf(r request) (net.Listener, error) {
	listener, err := listenForMetrics(r.metricsAddress, "--metrics ADDR")
	if errors.Is(err, unix.EADDRINUSE) && !r.metricsGiven {
		a.complain("%s: no metrics: another process has %s; --metrics ADDR serves them elsewhere, and cakectl serve those of many devices in one place", r.device, r.metricsAddress)
		return nil, nil
	}
	if err != nil {
		return nil, prefix("attach", r.device, err)
	}
	return listener, nil
}

// listenForMetrics takes the address before a device is touched; nil is none. The setting is what the
// user can change.
func listenForMetrics(address, setting string) (net.Listener, error) {
	if address == "" || address == config.MetricsNone {
		return nil, nil
	}
	listener, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("serve metrics on %s: %w: another process has that address; give another one, or none, as %s", address, unix.EADDRINUSE, setting)
	case err != nil:
		return nil, fmt.Errorf("serve metrics: %w; give another address, or none, as %s", err, setting)
	}
	return listener, nil
}
