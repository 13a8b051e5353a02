// SPDX-License-Identifier: BSD-2-Clause

// Command lab measures shapers side by side, in one run of one virtual machine.
//
//	go run ./lab -exp tcp1,tcp32,udp16x4 -peers cake,cake_mq,cakectl -rates 40mbit,200mbit -queues 8 -repeat 3 -duration 5s
//	go run ./lab -list
//	go run ./lab -from results.json -report DIR -readme README.md
//	go run ./lab -compare one.json another.json
//
// It builds itself and cakectl, runs both in VMs, one for each experiment and some at a time (see package
// vm; -lane names the kernel, -native uses the machine's own), and prints Markdown tables of medians with the smallest and largest value.
// -report makes a page with pictures, -readme replaces the table of the README (both can be made later, -from
// the JSON), -json writes every single result, with flows, rates over time and delays; -details adds what the
// shapers' own tools say. A run that went wrong in any way has no numbers but a reason, in the table and in
// the JSON, and makes the exit status 1: a shaper that the kernel lacks, an iperf3 that died, a load of
// which nothing arrived, a VM that hangs.
//
// The VM's clock counts instructions, one a nanosecond, so that the guest is a machine of one gigahertz
// that nothing disturbs, and a slow host only takes longer. The guest's random numbers come from -seed, and
// its image is the same to the byte: with the same binaries most runs are the same to the last digit. Other
// seeds tell how much of a number is chance. With -real-time the guest's clock follows the host's. Where the VM's NICs take part, packets leave
// the guest, and while it waits for them time goes on as on the host: such an experiment needs a host with
// nothing else to do.
//
// What is measured is what arrives at the receiver, in bytes of Ethernet frames (see package meter):
// "10ms max" is the highest rate in any window of 10 ms, from the first packet on, as a multiple of
// the bandwidth. "goodput" is a percentage of what TCP and IP headers leave of the bandwidth. Ping
// times are those of one ICMP echo each 10 ms, to four addresses in turn. "idle" is the guest's CPU:
// where less than 5 % was idle the CPU may have been the limit, not the shaper.
//
// The experiment cost counts instructions instead: the kernel's packet generator sends through each
// shaper into a device that takes everything, and what the same takes with mq and fq alone is subtracted.
package main
