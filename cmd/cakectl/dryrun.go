// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/doctor"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/shaper"
	"github.com/cakectl/cakectl/pkg/tins"
)

// refusals are why an attach would fail. They are told one a line.
type refusals []error

func (r refusals) Error() string   { return errors.Join(r...).Error() }
func (r refusals) Unwrap() []error { return r }

// dryRun says what an attach would do, and ends as that would.
func (a *app) dryRun(ctx context.Context, r request) error {
	_, status, err := a.daemonOf(ctx, r)
	if err == nil {
		return a.dryRunThroughDaemon(r, status)
	}
	if !errors.Is(err, api.ErrNoDaemon) {
		return err
	}
	_, err = a.host().Devices(ctx)
	served := err == nil
	if err != nil && !errors.Is(err, api.ErrNoDaemon) && !isElsewhere(err) {
		return err
	}
	found, err := a.attachedSpec(r.device)
	if err != nil {
		return err
	}
	if served {
		r.metricsAddress = config.MetricsNone
	}
	spec, err := r.spec(found)
	if err != nil {
		return prefix("attach", r.device, err)
	}
	preview, err := a.shapers.Plan(ctx, spec)
	if err != nil {
		return err
	}
	if err := printPreview(a.stdout, r.device, preview); err != nil {
		return err
	}
	var refused refusals
	if served {
		a.say("%s: cakectl serve is running and would take it, with its metrics", r.device)
	} else {
		refused = a.refusedHere(r)
	}
	for _, err := range preview.Refused {
		refused = append(refused, prefix("attach", r.device, err))
	}
	if err := doctor.TryFQ(); err != nil && !errors.Is(err, doctor.ErrFQUntried) {
		refused = append(refused, prefix("attach", r.device, err))
	}
	if len(refused) > 0 {
		a.say("%s: attach would fail, and leave it as it is", r.device)
		return refused
	}
	return nil
}

// dryRunThroughDaemon is of a device that another process serves.
func (a *app) dryRunThroughDaemon(r request, status api.Status) error {
	found, err := a.attachedSpec(r.device)
	if err != nil {
		return err
	}
	if found == nil {
		a.say("%s: process %d is to shape it and cannot yet: %s", r.device, status.Daemon, status.Reason)
		return nil
	}
	spec, err := found.Apply(r.change)
	if err == nil {
		err = found.CheckLive(spec)
	}
	if err != nil {
		return prefix("attach", r.device, err)
	}
	changes := config.Differences(*found, spec)
	if len(changes) == 0 {
		a.say("%s: is attached and served by process %d; nothing would change", r.device, status.Daemon)
		return nil
	}
	a.say("%s: is attached and served by process %d, which would be handed the change: %s", r.device, status.Daemon, strings.Join(changes, ", "))
	return nil
}

// refusedHere is what would keep this process from serving the device.
func (a *app) refusedHere(r request) (refused refusals) {
	if err := requireCapabilities("attach", r.device); err != nil {
		refused = append(refused, err)
	}
	listener, err := a.listenForMetricsOf(r)
	if err != nil {
		refused = append(refused, err)
	}
	switch {
	case listener != nil:
		a.say("%s: would serve metrics on http://%s/metrics", r.device, r.metricsAddress)
		if err := listener.Close(); err != nil {
			refused = append(refused, err)
		}
	case err == nil:
		a.say("%s: would serve no metrics", r.device)
	}
	if r.keep {
		a.say("%s: when the process ends, shaping would go on without one", r.device)
	} else {
		a.say("%s: when the process ends, it would be detached, and as it was found", r.device)
	}
	return refused
}

// printPreview shows what a device would be shaped to, and what would be done for that.
func printPreview(w io.Writer, device string, p shaper.Preview) error {
	var out strings.Builder
	if len(p.Rates.Tins) > 0 {
		fmt.Fprintf(&out, "%s: would be shaped to\n", device)
		printSettings(&out, p)
	}
	fmt.Fprintf(&out, "%s: is found %s\n", device, p.Found)
	// Some steps of an attach that is refused are not known, and none is taken.
	if len(p.Steps) > 0 && len(p.Refused) == 0 {
		fmt.Fprintf(&out, "%s: would\n", device)
		for _, step := range p.Steps {
			fmt.Fprintf(&out, "  %s\n", step)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func printSettings(w io.Writer, p shaper.Preview) {
	spec, bandwidth := p.Spec, p.Rates.Bandwidth
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name, format string, values ...any) {
		fmt.Fprintf(table, "  %s\t%s\n", name, fmt.Sprintf(format, values...))
	}
	row("bandwidth", "%s%s", bandwidth, ofLink(spec.Bandwidth, p.LinkSpeed))
	row("tins", "%s", spec.Preset)
	for _, i := range displayOrder(spec.Preset, len(p.Rates.Tins)) {
		tin := p.Rates.Tins[i]
		rate := "guaranteed " + tin.Rate.String()
		switch {
		case bandwidth == rates.Unlimited:
			rate = bandwidth.String()
		case tin.Rate >= bandwidth && len(p.Rates.Tins) > 1:
			rate = "guaranteed the rest"
		}
		if tin.Ceil < bandwidth {
			rate += ", at most " + tin.Ceil.String()
		}
		row("  "+tin.Name, "%s", rate)
	}
	if classes := classes(api.Classes{Map: spec.Map, FwmarkMask: spec.FwmarkMask, InnerDSCP: spec.InnerDSCP, Wash: spec.Wash}); classes != "" {
		row("classes", "%s", classes)
	}
	row("split", "%s", spec.Split)
	row("isolation", "%s", cmp.Or(spec.Isolation, config.IsolateFlows))
	row("line", "%s", cmp.Or(spec.Framing.String(), "raw: packets as the device sends them"))
	row("rtt", "%s", spec.RTT)
	why := "0.25 ms of the bandwidth, or 2 segments, or 1 that takes 1 ms"
	if spec.WholeGSO || bandwidth == rates.Unlimited {
		why = "as the device takes them"
	}
	row("super-packets", "at most %d bytes, %s (%s)", p.GSOMaxBytes, count(int(p.GSOMaxSegments), "segment"), why)
	row("queues", "%d, each with room for %d flows a tin (%.1f MB)", p.Queues, spec.Flows, float64(p.FlowTableBytes)/1e6)
	row("on drift", "%s", cmp.Or(spec.OnDrift, config.DriftRepair))
	table.Flush() // into a strings.Builder, which takes everything
}

// ofLink says what a percentage is of.
func ofLink(bandwidth rates.Value, link rates.Rate) string {
	if !bandwidth.IsPercent() {
		return ""
	}
	return fmt.Sprintf(" (%s of the link's %s)", bandwidth, link)
}

// displayOrder is the order in which status shows tins.
func displayOrder(preset tins.Preset, n int) []int {
	if def, err := tins.Lookup(string(preset)); err == nil && len(def.DisplayOrder) == n {
		return def.DisplayOrder
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}
