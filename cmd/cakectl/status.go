// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
)

func (a *app) statusCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status [DEV] [flags]",
		Short: "Show what the kernel enforces on a device, or on all of them",
		Long: `Show what is in force, as read from the kernel: whether the rates are enforced, and why
not; rates, counters and active flows of each tin; the effective rate of each queue.
Without a device, all attached ones in short.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneDevice(cmd, args)
		},
		ValidArgsFunction: a.completeAttached,
		PreRunE: func(*cobra.Command, []string) error {
			if output != "text" && output != "json" {
				return invalid("unknown output %q: want text or json", output)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.statusAll(cmd.Context(), output == "json")
			}
			return a.status(cmd.Context(), args[0], output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format` of the output: text or json")
	completeWords(cmd, "output", "text", "json")
	return cmd
}

func (a *app) status(ctx context.Context, device string, asJSON bool) error {
	status, err := a.readStatus(ctx, device)
	if err != nil {
		return mustAttached(device, err)
	}
	if asJSON {
		err = a.printJSON(status)
	} else {
		err = printStatus(a.stdout, status)
	}
	if err == nil && !status.Enforcing {
		err = errNotEnforcing
	}
	return err
}

func (a *app) readStatus(ctx context.Context, device string) (status api.Status, err error) {
	err = a.on(device, func(d api.Device) error {
		status, err = d.Status(ctx)
		return err
	})
	return status, err
}

// statusAll shows every device that can be read, and then complains about the others.
func (a *app) statusAll(ctx context.Context, asJSON bool) error {
	devices, err := a.devices(ctx)
	if err != nil {
		return err
	}
	statuses := []api.Status{}
	var failed error
	enforcing := true
	for _, device := range devices {
		status, err := a.readStatus(ctx, device)
		switch {
		case daemon.KindOf(err) == api.KindNotAttached: // detached since it was listed
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			statuses = append(statuses, status)
			enforcing = enforcing && status.Enforcing
		}
	}
	switch {
	case asJSON:
		err = a.printJSON(statuses)
	case len(statuses) > 0:
		err = printStatuses(a.stdout, statuses)
	case failed == nil:
		a.say("no device is attached")
	}
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	if !enforcing {
		return errNotEnforcing
	}
	return nil
}

// devices names those that are attached, and those that serve would attach if it could.
func (a *app) devices(ctx context.Context) ([]string, error) {
	attached, err := a.shapers.List()
	if err != nil {
		return nil, err
	}
	served, err := a.host().Devices(ctx)
	if err != nil && !errors.Is(err, api.ErrNoDaemon) && !isElsewhere(err) {
		return nil, err
	}
	devices := attached
	for _, device := range served {
		// Attached before it was renamed, and served by its new name, it is one all the same.
		if recorded, err := a.shapers.Recorded(device); err == nil {
			device = recorded
		}
		devices = append(devices, device)
	}
	slices.Sort(devices)
	return slices.Compact(devices), nil
}

func (a *app) printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	_, err = fmt.Fprintf(a.stdout, "%s\n", text)
	return err
}
