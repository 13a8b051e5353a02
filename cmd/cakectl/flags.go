// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// changeFlags are those of attach and set: what can be changed while traffic flows.
type changeFlags struct {
	bandwidth, split, rtt string
	isolation             string
	tins                  []string
	overhead              []string
	mpu                   string
	atm, ptm, noATM       bool
	rules                 []string
	fwmark                string
	innerDSCP, wash       bool
	wholeGSO              bool
	onDrift               string
}

func (f *changeFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.bandwidth, "bandwidth", "", "`rate` of the whole device: absolute, % of the link's speed, or unlimited")
	flags.StringArrayVar(&f.tins, "tin", nil, "`settings` of one tin, NAME=rate:RATE,ceil:RATE (one or both): the rate it is guaranteed, or default; its hard cap, or none; may be repeated")
	flags.StringVar(&f.split, "split", "", "`policy` that divides a tin's rate among its active queues: by their flows, or equally: flows or equal")
	flags.StringVar(&f.isolation, "isolation", "", "`what` is treated equally within a tin: flows; hosts (srchost, dsthost, hosts); or hosts and then the flows of each (dual-srchost, dual-dsthost, triple)")
	flags.StringVar(&f.rtt, "rtt", "", "round-trip `time` of the traffic: such as 20ms, or "+strings.Join(rttPresets(), ", "))
	flags.StringSliceVar(&f.overhead, "overhead", nil, "what the line adds to an IP packet, in `bytes` or by tc-cake's names, which add up: "+strings.Join(framing.Keywords(), ", "))
	flags.StringVar(&f.mpu, "mpu", "", "`bytes` that a packet takes on the line at least")
	flags.BoolVar(&f.atm, "atm", false, "the line is ATM: 53 bytes for each 48 begun")
	flags.BoolVar(&f.ptm, "ptm", false, "the line is PTM: 65 bytes for 64")
	flags.BoolVar(&f.noATM, "noatm", false, "the line is neither")
	flags.StringArrayVar(&f.rules, "map", nil, "`rule` for packets of a DSCP or mark, dscp:EF=TIN or mark:0x10=TIN (or a range), above the preset's; may be repeated; what is given takes the place of all rules, none of them is none")
	flags.StringVar(&f.fwmark, "fwmark", "", "`mask` of the bits of a packet's mark that hold the number of its tin, from 1 in status's order, as tc-cake has it; or none")
	flags.BoolVar(&f.innerDSCP, "inner-dscp", false, "go by the DSCP of what a tunnel (IP in IP, GRE, VXLAN, GENEVE) carries")
	flags.BoolVar(&f.wash, "wash", false, "clear the DSCP of what is sent, once it was read; ECN stays")
	flags.BoolVar(&f.wholeGSO, "whole-gso", false, "leave super-packets as large as the device takes them, instead of 0.25 ms of the bandwidth: less work for the CPU, longer lumps on the line")
	completeWords(cmd, "overhead", framing.Keywords()...)
	flags.StringVar(&f.onDrift, "on-drift", "", "`policy` for when others change what is ours on the device: put it back, or only tell: repair or report")
	completeWords(cmd, "on-drift", string(config.DriftRepair), string(config.DriftReport))
	completeWords(cmd, "split", string(rates.SplitFlows), string(rates.SplitEqual))
	completeWords(cmd, "isolation", isolationNames()...)
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
	if given("isolation") {
		isolation, err := config.ParseIsolation(f.isolation)
		if err != nil {
			return change, err
		}
		change.Isolation = &isolation
	}
	if err := f.lineChange(given, &change); err != nil {
		return change, err
	}
	if err := f.classChange(given, &change); err != nil {
		return change, err
	}
	if given("rtt") {
		rtt, err := config.ParseRTT(f.rtt)
		if err != nil {
			return change, err
		}
		change.RTT = &rtt
	}
	if given("on-drift") {
		onDrift, err := config.ParseOnDrift(f.onDrift)
		if err != nil {
			return change, err
		}
		change.OnDrift = &onDrift
	}
	return change, nil
}

// lineChange reads the flags about the line behind the device.
func (f *changeFlags) lineChange(given func(flag string) bool, change *config.Change) error {
	if given("overhead") {
		framing, err := config.ParseOverhead(f.overhead...)
		if err != nil {
			return err
		}
		change.Framing = &framing
	}
	if given("mpu") {
		bytes, err := config.ParseMPU(f.mpu)
		if err != nil {
			return err
		}
		change.MPUBytes = &bytes
	}
	for flag, on := range map[string]bool{"atm": f.atm, "ptm": f.ptm, "noatm": f.noATM} {
		if given(flag) && !on {
			return invalid("--%s=false says nothing: a line is one of --atm, --ptm and --noatm, which is neither", flag)
		}
	}
	for cells, given := range map[framing.Cells]bool{framing.ATM: f.atm, framing.PTM: f.ptm, framing.None: f.noATM} {
		switch {
		case !given:
		case change.Cells != nil:
			return invalid("a line is one of --atm, --ptm and --noatm")
		default:
			change.Cells = &cells
		}
	}
	return nil
}

// classChange reads the flags about which tin a packet belongs to.
func (f *changeFlags) classChange(given func(flag string) bool, change *config.Change) error {
	if given("map") {
		rules, err := config.ParseMap(f.rules)
		if err != nil {
			return err
		}
		change.Map = &rules
	}
	if given("fwmark") {
		mask, err := config.ParseFwmark(f.fwmark)
		if err != nil {
			return err
		}
		change.FwmarkMask = &mask
	}
	if given("inner-dscp") {
		change.InnerDSCP = &f.innerDSCP
	}
	if given("wash") {
		change.Wash = &f.wash
	}
	if given("whole-gso") {
		change.WholeGSO = &f.wholeGSO
	}
	return nil
}

// rttPresets are the names that config.ParseRTT takes.
func rttPresets() []string {
	return []string{"datacentre", "lan", "metro", "regional", "internet", "oceanic", "satellite", "interplanetary"}
}

func isolationNames() []string {
	var names []string
	for _, isolation := range config.Isolations() {
		names = append(names, string(isolation))
	}
	return names
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
