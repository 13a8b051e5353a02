// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/cakectl/cakectl/pkg/framing"
)

// lines are all keywords, and what keywords do not say.
func lines(t *testing.T) []framing.Framing {
	var lines []framing.Framing
	for _, keyword := range framing.Keywords() {
		line, err := framing.Parse([]string{keyword})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return append(lines,
		framing.Framing{OverIP: true, OverheadBytes: -64},
		framing.Framing{OverheadBytes: 256, MPUBytes: 256, Cells: framing.ATM},
		framing.Framing{OverheadBytes: -64, MPUBytes: 1, Cells: framing.PTM},
	)
}

// gsoCase is struct gso (bpf/framing.h).
type gsoCase struct{ Bytes, HeaderBytes, SegmentBytes, LinkBytes uint32 }

// segmented is what the segments take, cut one by one.
func (c gsoCase) segmented(line framing.Framing) (bytes int) {
	for left := int(c.Bytes - c.HeaderBytes); left > 0; left -= int(c.SegmentBytes) {
		segment := int(c.HeaderBytes) + min(left, int(c.SegmentBytes))
		bytes += line.Bytes(segment, int(c.LinkBytes))
	}
	return bytes
}

// TestFramingIsTheModels compares the data path's framing with pkg/framing, which hand-computed
// values anchor: every packet of 0 to 65,535 bytes, and super-packets of all sorts.
func TestFramingIsTheModels(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpec("testdata/framing_bpfel.o")
	if err != nil {
		t.Fatal(err)
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	defer collection.Close()
	const largest = 1<<20 - 1 // FRAMED_BYTES_MAX

	random := rand.New(rand.NewPCG(1, 2))
	cases := make([]gsoCase, 4096)
	for i := range cases {
		header := uint32(14 + 20 + 8 + random.IntN(200))
		segment := uint32(1 + random.IntN(9000))
		cases[i] = gsoCase{
			Bytes:        header + 1 + uint32(random.IntN(min(512<<10, 200*int(segment)))),
			HeaderBytes:  header,
			SegmentBytes: segment,
			LinkBytes:    14,
		}
	}
	// A last segment that is full, or as short as it can be.
	cases[0] = gsoCase{54 + 10*1446, 54, 1446, 14}
	cases[1] = gsoCase{54 + 10*1446 + 1, 54, 1446, 14}
	// More than a clock can count.
	cases[2] = gsoCase{54 + 512<<10, 54, 48, 14}

	for _, line := range lines(t) {
		// Sizes here are those of IP packets: what the link adds is taken off by the caller.
		ipCases := cases
		if !line.OverIP {
			ipCases = append([]gsoCase{}, cases...)
			for i := range ipCases {
				ipCases[i].LinkBytes = 0
			}
		}
		if err := collection.Variables["line"].Set(framingConfig(line)); err != nil {
			t.Fatal(err)
		}
		if err := collection.Variables["gso_cases"].Set(ipCases); err != nil {
			t.Fatal(err)
		}
		if _, err := collection.Programs["framing_all"].Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
			t.Fatal(err)
		}
		framed := make([]uint32, 1<<16)
		if err := collection.Variables["framed_of"].Get(framed); err != nil {
			t.Fatal(err)
		}
		for size := range framed {
			if want := line.Bytes(size, 0); int(framed[size]) != want {
				t.Fatalf("%s: %d bytes take %d, want %d", line, size, framed[size], want)
			}
		}
		gsoFramed := make([]uint32, len(cases))
		if err := collection.Variables["gso_framed_of"].Get(gsoFramed); err != nil {
			t.Fatal(err)
		}
		for i, c := range ipCases {
			if want := min(c.segmented(line), largest); int(gsoFramed[i]) != want {
				t.Fatalf("%s: %+v takes %d, want %d", line, c, gsoFramed[i], want)
			}
		}
	}
}
