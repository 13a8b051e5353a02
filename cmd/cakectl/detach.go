// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/api"
)

func (a *app) detachCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "detach DEV",
		Short: "Stop shaping a device and leave it as it was found",
		Long: `Take everything off a device that attach put there, and bring its qdiscs and GSO limits
back to what they were before. A cakectl attach that runs for the device ends.`,
		Args:              oneDevice,
		ValidArgsFunction: a.completeAttached,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.detach(cmd.Context(), args[0])
		},
	}
}

func (a *app) detach(ctx context.Context, device string) error {
	recorded, err := a.shapers.Recorded(device)
	if err != nil {
		return err
	}
	lost := a.env.RecordLost(recorded)
	awaited := false
	err = a.change(ctx, "detach", device, func(d api.Device) error {
		awaited = awaited || isAwaited(ctx, d, device)
		return d.Detach(ctx)
	})
	if err != nil {
		return mustAttached(device, err)
	}
	if err := api.RemoveStale(a.env.RunDir, recorded); err != nil {
		return err
	}
	if lost {
		a.say("%s: detached; what it was like before is not known, since the record of it was gone: it has the kernel's defaults", device)
		return nil
	}
	if awaited {
		a.say("%s: not waited for any more; there is no such device", device)
		return nil
	}
	a.say("%s: detached, and as it was found", device)
	return nil
}

// isAwaited tells whether a device is not there, and its daemon has not attached it yet.
func isAwaited(ctx context.Context, d api.Device, device string) bool {
	client, asked := d.(*api.Client)
	if !asked {
		return false
	}
	status, err := client.Status(ctx)
	if err != nil || status.Attach != "" {
		return false
	}
	_, missing := findDevice(device)
	return missing != nil
}
