// SPDX-License-Identifier: BSD-2-Clause

package framing

import (
	"fmt"
	"strings"
)

// Cells is what a line sends a packet in.
type Cells string

// The kinds of cells; "" is none.
const (
	None Cells = ""
	// ATM cells carry 48 bytes in 53, and the last one is padded.
	ATM Cells = "atm"
	// PTM sends one byte more for each 64 that are begun.
	PTM Cells = "ptm"
)

// Framing is what a line does to a packet. The zero value does nothing: a packet is as long as the
// device sends it, with the link's header.
type Framing struct {
	// OverIP says that the overhead is all that the line adds to an IP packet, so the link's header
	// does not count. Without, the overhead is added to the frame.
	OverIP bool `json:"over_ip"`
	// OverheadBytes may be negative, down to taking off a header that the line does not carry.
	OverheadBytes int `json:"overhead_bytes"`
	// MPUBytes is the least that a packet takes, cells not counted.
	MPUBytes int   `json:"mpu_bytes"`
	Cells    Cells `json:"cells"`
}

// The ranges, as in sch_cake.
const (
	MinOverheadBytes = -64
	MaxOverheadBytes = 256
	MaxMPUBytes      = 256
)

// Check tells whether all is in range.
func (f Framing) Check() error {
	switch {
	case f.OverheadBytes < MinOverheadBytes || f.OverheadBytes > MaxOverheadBytes:
		return fmt.Errorf("overhead of %d bytes: must be from %d to %d", f.OverheadBytes, MinOverheadBytes, MaxOverheadBytes)
	case f.MPUBytes < 0 || f.MPUBytes > MaxMPUBytes:
		return fmt.Errorf("mpu of %d bytes: must be from 0 to %d", f.MPUBytes, MaxMPUBytes)
	case f.Cells != None && f.Cells != ATM && f.Cells != PTM:
		return fmt.Errorf("unknown cells %q: want atm or ptm", f.Cells)
	}
	return nil
}

// Bytes is what a packet takes on the line. Its frame has so many bytes, of which the IP header is
// at ipOffset.
func (f Framing) Bytes(frameBytes, ipOffset int) int {
	bytes := frameBytes
	if f.OverIP {
		bytes -= ipOffset
	}
	bytes = max(bytes+f.OverheadBytes, f.MPUBytes)
	switch f.Cells {
	case ATM:
		return ceilDiv(bytes, 48) * 53
	case PTM:
		return bytes + ceilDiv(bytes, 64)
	}
	return bytes
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// String writes the framing as tc-cake(8) shows it; "" for the zero value.
func (f Framing) String() string {
	var words []string
	if f.OverIP || f.OverheadBytes != 0 {
		words = append(words, fmt.Sprintf("overhead %d", f.OverheadBytes))
	}
	if len(words) > 0 && !f.OverIP {
		words = append([]string{"raw"}, words...)
	}
	if f.MPUBytes != 0 {
		words = append(words, fmt.Sprintf("mpu %d", f.MPUBytes))
	}
	if f.Cells != None {
		words = append(words, string(f.Cells))
	}
	return strings.Join(words, " ")
}
