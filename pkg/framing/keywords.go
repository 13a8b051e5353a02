// SPDX-License-Identifier: BSD-2-Clause

package framing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// keyword is a word of tc-cake(8) for a kind of line.
type keyword struct {
	name string
	// overhead is added to what was given before; with reset, it takes the place of that.
	overhead int
	reset    bool
	mpu      int // 0 says nothing about it
	// cells are changed with setCells only.
	cells    Cells
	setCells bool
}

var keywords = []keyword{
	{name: "raw", reset: true, setCells: true}, // no overhead over IP, see Parse
	{name: "conservative", overhead: 48, reset: true, cells: ATM, setCells: true},
	{name: "ethernet", overhead: 38, mpu: 84},
	{name: "ether-vlan", overhead: 4},
	{name: "docsis", overhead: 18, mpu: 64, setCells: true},
	{name: "pppoe-ptm", overhead: 30, cells: PTM, setCells: true},
	{name: "bridged-ptm", overhead: 22, cells: PTM, setCells: true},
	{name: "ipoa-vcmux", overhead: 8, cells: ATM, setCells: true},
	{name: "ipoa-llcsnap", overhead: 16, cells: ATM, setCells: true},
	{name: "bridged-vcmux", overhead: 24, cells: ATM, setCells: true},
	{name: "bridged-llcsnap", overhead: 32, cells: ATM, setCells: true},
	{name: "pppoa-vcmux", overhead: 10, cells: ATM, setCells: true},
	{name: "pppoa-llc", overhead: 14, cells: ATM, setCells: true},
	{name: "pppoe-vcmux", overhead: 32, cells: ATM, setCells: true},
	{name: "pppoe-llcsnap", overhead: 40, cells: ATM, setCells: true},
}

const raw = "raw"

// Keywords lists the words that Parse knows.
func Keywords() []string {
	names := make([]string, 0, len(keywords))
	for _, k := range keywords {
		names = append(names, k.name)
	}
	return names
}

// Parse reads a line's description: keywords of tc-cake(8) and numbers of bytes, in order. As there,
// a number, "conservative" and "raw" set the overhead, and every other keyword adds to it: "pppoe-ptm
// ether-vlan" is 34. Case does not matter.
func Parse(words []string) (Framing, error) {
	f := Framing{OverIP: true}
	for _, word := range words {
		name := strings.ToLower(strings.TrimSpace(word))
		if bytes, err := strconv.Atoi(name); err == nil {
			f.OverheadBytes = bytes
			continue
		}
		if name == "none" {
			return Framing{}, fmt.Errorf("unknown overhead %q: raw is the word for it, packets as the device sends them; 0 is IP packets and nothing more", word)
		}
		i := slices.IndexFunc(keywords, func(k keyword) bool { return k.name == name })
		if i < 0 {
			return Framing{}, fmt.Errorf("unknown overhead %q: want a number of bytes, or of %s", word, strings.Join(Keywords(), ", "))
		}
		k := keywords[i]
		if k.reset {
			f.OverheadBytes = 0
		}
		f.OverheadBytes += k.overhead
		if k.mpu != 0 {
			f.MPUBytes = k.mpu
		}
		if k.setCells {
			f.Cells = k.cells
		}
		if k.name == raw {
			f.OverIP = false
		}
	}
	if err := f.Check(); err != nil {
		return Framing{}, err
	}
	return f, nil
}

// ParseCells reads "atm", "ptm" or "noatm".
func ParseCells(word string) (Cells, error) {
	switch word := strings.ToLower(word); word {
	case "atm", "ptm":
		return Cells(word), nil
	case "noatm":
		return None, nil
	}
	return None, fmt.Errorf("unknown cells %q: want atm, ptm or noatm", word)
}
