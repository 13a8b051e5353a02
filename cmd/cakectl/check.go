// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/config"
)

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without touching anything",
		Long: `Read a configuration file as serve and apply do, and say everything that is wrong with it,
each mistake with its line. Neither the kernel nor a daemon is asked.

The file is YAML, with these keys; cakectl.yaml(5), docs/CONFIG.md, describes each of them:

    metrics: ADDRESS or none
    defaults: settings of all devices, where they have no other
    devices:
      NAME:
        bandwidth, diffserv, split, isolation, flows, rtt: as the flags of attach
        overhead, mpu, map (a list), fwmark: as those too
        cells: atm, ptm or noatm
        inner_dscp, wash, whole_gso, keep, replace, check_queues: true or false
        on_drift: repair or report
        tins:
          NAME: {rate: RATE, ceil: RATE}`,
		Example: `  cakectl check /etc/cakectl.yaml`,
		Args:    oneFile,
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := config.ReadFile(args[0])
			if err != nil {
				return err
			}
			a.say("%s: valid; %s", args[0], count(len(file.Devices), "device"))
			return nil
		},
	}
}

// oneFile wants exactly the configuration file as argument.
func oneFile(_ *cobra.Command, args []string) error {
	switch {
	case len(args) == 0, args[0] == "":
		return errors.New("no file given")
	case len(args) > 1:
		return errors.New("one file at a time")
	}
	return nil
}
