// SPDX-License-Identifier: BSD-2-Clause

package framing

import (
	"strings"
	"testing"
)

// TestBytes compares with values worked out by hand from the formulas in sch_cake: a frame of a
// 14-byte link header and an IP packet.
func TestBytes(t *testing.T) {
	const link = 14
	for _, c := range []struct {
		line     string
		ip, want int
	}{
		{"raw", 1500, 1514}, {"raw", 1, 15},
		{"0", 1500, 1500},
		{"-20", 40, 20}, {"-64", 40, 0}, {"-64", 1, 0},
		{"256", 1, 257},

		// 38 bytes and no less than 84.
		{"ethernet", 1500, 1538}, {"ethernet", 46, 84}, {"ethernet", 47, 85}, {"ethernet", 1, 84},
		{"ethernet ether-vlan", 1500, 1542}, {"ethernet ether-vlan ether-vlan", 1500, 1546},
		{"docsis", 1500, 1518}, {"docsis", 46, 64}, {"docsis", 28, 64},

		// 65 for 64: (1492+30)/64 is 23.8, so 24 more; 98+30 are 2 blocks exactly, 99+30 a third.
		{"pppoe-ptm", 1492, 1546}, {"pppoe-ptm", 98, 130}, {"pppoe-ptm", 99, 132}, {"pppoe-ptm", 1, 32},
		{"bridged-ptm", 1500, 1546}, {"bridged-ptm", 42, 65}, {"bridged-ptm", 43, 67},
		{"pppoe-ptm ether-vlan", 1492, 1550},

		// 53 for each 48 begun: 40+8 are a cell, 41+8 are two; 1500+8 are 32 (31.4).
		{"ipoa-vcmux", 40, 53}, {"ipoa-vcmux", 41, 106}, {"ipoa-vcmux", 1500, 1696},
		{"ipoa-llcsnap", 32, 53}, {"ipoa-llcsnap", 33, 106}, {"ipoa-llcsnap", 1500, 1696},
		{"bridged-vcmux", 24, 53}, {"bridged-vcmux", 25, 106}, {"bridged-vcmux", 1500, 1696},
		{"bridged-llcsnap", 16, 53}, {"bridged-llcsnap", 17, 106}, {"bridged-llcsnap", 1500, 1696},
		{"pppoa-vcmux", 38, 53}, {"pppoa-vcmux", 39, 106}, {"pppoa-vcmux", 1478, 1643}, {"pppoa-vcmux", 1479, 1696},
		{"pppoa-llc", 34, 53}, {"pppoa-llc", 35, 106},
		{"pppoe-vcmux", 16, 53}, {"pppoe-vcmux", 17, 106}, {"pppoe-vcmux", 1492, 1696},
		{"pppoe-llcsnap", 8, 53}, {"pppoe-llcsnap", 9, 106}, {"pppoe-llcsnap", 1492, 1696},
		{"conservative", 1500, 1749}, {"conservative", 1, 106},
	} {
		f, err := Parse(strings.Fields(c.line))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Bytes(link+c.ip, link); got != c.want {
			t.Errorf("%s: an IP packet of %d bytes takes %d, want %d", c.line, c.ip, got, c.want)
		}
	}
	// The mpu is applied before the cells.
	if got := (Framing{MPUBytes: 49, Cells: ATM}).Bytes(14, 14); got != 106 {
		t.Errorf("14 bytes with mpu 49 over ATM take %d, want 106", got)
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]Framing{
		"raw":                      {},
		"44":                       {OverIP: true, OverheadBytes: 44},
		"Ethernet":                 {OverIP: true, OverheadBytes: 38, MPUBytes: 84},
		"docsis ether-vlan":        {OverIP: true, OverheadBytes: 22, MPUBytes: 64},
		"pppoe-ptm 10":             {OverIP: true, OverheadBytes: 10, Cells: PTM},
		"10 pppoe-ptm":             {OverIP: true, OverheadBytes: 40, Cells: PTM},
		"pppoe-ptm docsis":         {OverIP: true, OverheadBytes: 48, MPUBytes: 64},
		"ether-vlan conservative":  {OverIP: true, OverheadBytes: 48, Cells: ATM},
		"conservative ether-vlan":  {OverIP: true, OverheadBytes: 52, Cells: ATM},
		"pppoe-llcsnap raw":        {},
		"raw 10":                   {OverheadBytes: 10},
		"ethernet bridged-llcsnap": {OverIP: true, OverheadBytes: 70, MPUBytes: 84, Cells: ATM},
	} {
		if got, err := Parse(strings.Fields(line)); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		"none":                        `unknown overhead "none": raw is the word for it`,
		"pppoe":                       `unknown overhead "pppoe": want a number of bytes, or of raw, conservative`,
		"257":                         "overhead of 257 bytes: must be from -64 to 256",
		"-65":                         "overhead of -65 bytes",
		"250 conservative 250 docsis": "overhead of 268 bytes",
	} {
		if got, err := Parse(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", line, got, err, want)
		}
	}
}

func TestString(t *testing.T) {
	for want, f := range map[string]Framing{
		"overhead 34 ptm":    {OverIP: true, OverheadBytes: 34, Cells: PTM},
		"overhead 0":         {OverIP: true},
		"raw overhead -4":    {OverheadBytes: -4},
		"overhead 38 mpu 84": {OverIP: true, OverheadBytes: 38, MPUBytes: 84},
		"mpu 64 atm":         {MPUBytes: 64, Cells: ATM},
		"":                   {},
	} {
		if f.String() != want {
			t.Errorf("%+v is shown as %q, want %q", f, f, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, f := range []Framing{{OverheadBytes: -65}, {OverheadBytes: 257}, {MPUBytes: -1}, {MPUBytes: 257}, {Cells: "aal5"}} {
		if f.Check() == nil {
			t.Errorf("%+v is taken", f)
		}
	}
	if _, err := ParseCells("AAL5"); err == nil {
		t.Error("AAL5 is taken for cells")
	}
	for word, want := range map[string]Cells{"ATM": ATM, "ptm": PTM, "noatm": None} {
		if got, err := ParseCells(word); err != nil || got != want {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
}
