// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/doctor"
	"github.com/cakectl/cakectl/pkg/shaper"
)

func (a *app) doctorCommand() *cobra.Command {
	var output string
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "doctor [DEV] [flags]",
		Short: "Find what keeps a device from being shaped, or from being shaped well",
		Long: `Look at everything that shaping depends on: the kernel and the rights, and, for a device
or all attached ones, queues, XPS, other qdiscs and programs, and whether the rates are
enforced. Each finding is ok, a warning (it shapes, but not as well as it could) or a
failure, and comes with what to do; skip is what could not be judged now.

For a few seconds the transmit queues that were foreseen are compared with those that
packets went to: run it while there is traffic.

The exit status is 3 if something failed.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneDevice(cmd, args)
		},
		ValidArgsFunction: completeDevice,
		PreRunE: func(*cobra.Command, []string) error {
			switch {
			case output != "text" && output != "json":
				return invalid("unknown output %q: want text or json", output)
			case duration <= 0 || duration > time.Hour:
				return invalid("doctor: --for %s: want a time of up to an hour", duration)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			devices := args
			if len(args) == 0 {
				var err error
				if devices, err = a.shapers.List(); err != nil {
					return err
				}
			} else if _, err := findDevice(args[0]); err != nil {
				return err
			}
			return a.doctor(cmd.Context(), devices, duration, output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`format` of the output: text or json")
	cmd.Flags().DurationVar(&duration, "for", 3*time.Second, "`time` to compare foreseen queues with real ones")
	completeWords(cmd, "output", "text", "json")
	return cmd
}

func (a *app) doctor(ctx context.Context, devices []string, duration time.Duration, asJSON bool) error {
	host, err := doctor.LookAtHost(a.env.BPFFS, missingCapabilities())
	if err != nil {
		return err
	}
	// All devices are looked at while the first is.
	examined := make([][]doctor.Finding, len(devices))
	errs := make([]error, len(devices))
	var looks sync.WaitGroup
	for i, device := range devices {
		looks.Go(func() { examined[i], errs[i] = a.examine(ctx, device, duration) })
	}
	looks.Wait()
	findings := host.Findings()
	for _, f := range examined {
		findings = append(findings, f...)
	}
	if asJSON {
		err = a.printJSON(findings)
	} else {
		err = printFindings(a.stdout, findings)
	}
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return err
	}
	if doctor.Failed(findings) {
		return errNotEnforcing
	}
	return nil
}

// examine looks at a device, and at how it is shaped where it is.
func (a *app) examine(ctx context.Context, name string, duration time.Duration) ([]doctor.Finding, error) {
	device, err := doctor.LookAtDevice(name)
	if err != nil {
		return nil, err
	}
	status, err := a.readStatus(ctx, name)
	switch {
	case daemon.KindOf(err) == api.KindNotAttached:
		return device.Findings(), nil
	case err != nil:
		return nil, err
	}
	device.Status, device.CheckedFor = &status, duration
	if status.Attach == "" { // a daemon wants to attach it
		device.CheckFailed = shaper.ErrNotAttached
		return device.Findings(), nil
	}
	s, err := a.shapers.Open(name)
	if err != nil {
		return nil, err
	}
	device.Foresight, device.CheckFailed = s.CheckQueues(ctx, duration)
	return device.Findings(), errors.Join(ctx.Err(), s.Close())
}

// printFindings writes a line for each finding, and one for what to do about it.
func printFindings(w io.Writer, findings []doctor.Finding) error {
	verdicts := map[doctor.Verdict]string{doctor.OK: "ok", doctor.Warn: "WARN", doctor.Fail: "FAIL", doctor.Skip: "skip"}
	var out strings.Builder
	of := ""
	for i, f := range findings {
		if i == 0 || f.Device != of {
			of = f.Device
			if of == "" {
				out.WriteString("host\n")
			} else {
				fmt.Fprintf(&out, "%s\n", of)
			}
		}
		fmt.Fprintf(&out, "  %-4s  %-10s  %s\n", verdicts[f.Verdict], f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(&out, "  %-4s  %-10s  -> %s\n", "", "", f.Remedy)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}
