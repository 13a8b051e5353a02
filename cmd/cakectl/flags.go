// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// changeFlags are those of attach and set: what can be changed while traffic flows.
type changeFlags struct {
	bandwidth, split, rtt string
	tins                  []string
}

func (f *changeFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.bandwidth, "bandwidth", "", "`rate` of the whole device: absolute, % of the link's speed, or unlimited")
	flags.StringArrayVar(&f.tins, "tin", nil, "`settings` of one tin, NAME=rate:RATE,ceil:RATE (one or both): the rate it is guaranteed, or default; its hard cap, or none; may be repeated")
	flags.StringVar(&f.split, "split", "", "`policy` that divides a tin's rate among its active queues: by their flows, or equally: flows or equal")
	flags.StringVar(&f.rtt, "rtt", "", "round-trip `time` of the traffic: such as 20ms, or "+strings.Join(rttPresets(), ", "))
	completeWords(cmd, "split", string(rates.SplitFlows), string(rates.SplitEqual))
	completeWords(cmd, "rtt", rttPresets()...)
}

// change reads the flags that were given.
func (f *changeFlags) change(cmd *cobra.Command) (config.Change, error) {
	var change config.Change
	given := cmd.Flags().Changed
	if given("bandwidth") {
		bandwidth, err := config.ParseBandwidth(f.bandwidth)
		if err != nil {
			return change, err
		}
		change.Bandwidth = &bandwidth
	}
	for _, text := range f.tins {
		tin, err := config.ParseTinFlag(text)
		if err != nil {
			return change, err
		}
		change.Tins = append(change.Tins, tin)
	}
	if given("split") {
		split, err := config.ParseSplit(f.split)
		if err != nil {
			return change, err
		}
		change.Split = &split
	}
	if given("rtt") {
		rtt, err := config.ParseRTT(f.rtt)
		if err != nil {
			return change, err
		}
		change.RTT = &rtt
	}
	return change, nil
}

// rttPresets are the names that config.ParseRTT takes.
func rttPresets() []string {
	return []string{"datacentre", "lan", "metro", "regional", "internet", "oceanic", "satellite", "interplanetary"}
}

func presetNames() []string {
	var names []string
	for _, preset := range tins.Presets() {
		names = append(names, string(preset))
	}
	return names
}

// completeWords completes a flag's value from a fixed list.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	complete := cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // there is no such flag, or it is registered twice
	}
}
