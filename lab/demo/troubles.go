// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// troubles are totals of what a change must not cause.
type troubles struct {
	// dropped counts packets that cakectl dropped.
	dropped uint64
	// disordered counts TCP segments that came to the receiver before an earlier one: one of the two
	// was reordered, or the earlier one was lost.
	disordered uint64
}

func (p *story) troubles(ctx context.Context) (t troubles, err error) {
	status, err := p.daemon.Status(ctx)
	if err != nil {
		return t, err
	}
	for _, tin := range status.Tins {
		for _, packets := range tin.DroppedPackets {
			t.dropped += packets
		}
	}
	err = p.pair.Receiver.Do(func() (err error) {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err == nil {
			t.disordered, err = netstat(string(text), "TcpExt:", "TCPOFOQueue")
		}
		return err
	})
	if err != nil {
		return t, fmt.Errorf("read the receiver's counters: %w", err)
	}
	return t, nil
}

// netstat finds a counter in a file like /proc/net/netstat: lines in pairs, names above values, both
// beginning with their group.
func netstat(text, group, name string) (uint64, error) {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		i := slices.Index(names, name)
		if i < 0 || i >= len(fields) {
			break
		}
		return strconv.ParseUint(fields[i], 10, 64)
	}
	return 0, errors.New("there is no " + group + " " + name)
}
