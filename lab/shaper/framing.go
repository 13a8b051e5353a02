// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"fmt"
	"strings"
)

// Framing is what a line makes of a packet: the zero value is Ethernet as the kernel counts it.
type Framing struct {
	// Overhead is what each IP packet has around it on the line, in bytes, as CAKE counts.
	Overhead int
	// ATM puts packets into cells.
	ATM bool
}

const (
	ethernetHeader = 14
	cellBytes      = 53
	cellPayload    = 48
)

// Share is what remains of a line's rate for full frames, in bytes as the kernel counts them.
func (f Framing) Share(frameBytes int) float64 {
	if f == (Framing{}) {
		return 1
	}
	line := frameBytes - ethernetHeader + f.Overhead
	if f.ATM {
		line = (line + cellPayload - 1) / cellPayload * cellBytes
	}
	return float64(frameBytes) / float64(line)
}

// cake are the words for it in tc's cake, and in cakectl's flag --overhead.
func (f Framing) cake() string {
	if f == (Framing{}) {
		return ""
	}
	words := []string{fmt.Sprintf("overhead %d", f.Overhead)}
	if f.ATM {
		words = append(words, "atm")
	}
	return strings.Join(words, " ")
}

// htb are the words for it in tc's htb, which counts Ethernet's header by itself.
func (f Framing) htb() string {
	if f == (Framing{}) {
		return ""
	}
	words := []string{fmt.Sprintf("overhead %d", f.Overhead-ethernetHeader)}
	if f.ATM {
		words = append(words, "linklayer atm")
	}
	return strings.Join(words, " ")
}
