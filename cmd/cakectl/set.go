// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/daemon"
)

func (a *app) setCommand() *cobra.Command {
	var flags changeFlags
	cmd := &cobra.Command{
		Use:   "set DEV [flags]",
		Short: "Change the rates of an attached device while traffic flows",
		Long: `Change what an attached device is shaped to. It takes effect with the next packet; no
packet is lost or reordered by it. What is not given stays as it is; --overhead says all
about the line, so what is said of it beside that and not given goes.

What a flag without a value switches on, =false switches off: --wash=false.`,
		Example: `  cakectl set eth0 --bandwidth 1gbit
  cakectl set eth0 --overhead pppoe-ptm,ether-vlan
  cakectl set eth0 --overhead raw --wash=false --map none
  cakectl set eth0 --tin bulk=ceil:10% --tin voice=rate:default`,
		Args:              oneDevice,
		ValidArgsFunction: a.completeAttached,
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := flags.change(cmd)
			if err != nil {
				return prefix("set", args[0], err)
			}
			if change.Empty() {
				return invalid("set %s: nothing to change: give --bandwidth, --tin or another flag", args[0])
			}
			return a.set(cmd.Context(), args[0], change)
		},
	}
	flags.register(cmd)
	return cmd
}

func (a *app) set(ctx context.Context, device string, change config.Change) error {
	err := a.change(ctx, "set", device, func(d api.Device) error { return a.applyChange(ctx, d, change) })
	if daemon.KindOf(err) != api.KindNotAttached {
		return err
	}
	if err := mustAttached(device, err); daemon.KindOf(err) != api.KindNotAttached {
		return err
	}
	return fmt.Errorf("%w; first: cakectl attach %s --bandwidth RATE", err, device)
}

// applyChange makes a change and prints what is in force then.
func (a *app) applyChange(ctx context.Context, d api.Device, change config.Change) error {
	changed, err := d.Set(ctx, change)
	if err != nil {
		return err
	}
	status, err := d.Status(ctx)
	if errors.Is(err, api.ErrNoDaemon) {
		a.say("%s: changed, but the process that did it has ended since: cakectl status tells what is left", changed.Spec.Device)
		return nil
	}
	if err != nil {
		return err
	}
	a.say("%s: %s", status.Device, shapedTo(status))
	a.say("%s: %s", status.Device, tinRates(status))
	if classes := classes(status.Classes); classes != "" {
		a.say("%s: classes: %s", status.Device, classes)
	}
	a.say("%s: effective rates written: %d", status.Device, changed.RateWrites)
	return nil
}
