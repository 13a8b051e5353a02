// SPDX-License-Identifier: BSD-2-Clause

// Package pktgen sends packets by the kernel's packet generator, which hands them to a device's queueing
// disciplines one after the other and does little else: what remains of the time is theirs.
package pktgen

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The generator's files of the network namespace that the thread is in.
const (
	directory = "/proc/thread-self/net/pktgen"
	control   = "pgctrl"
)

// streamPorts is how many source ports each stream has to itself, at most.
const (
	firstPort   = 1024
	streamPorts = 256
)

// Config says what to send.
type Config struct {
	Device string
	// Threads is how many CPUs send, from CPU 0 on.
	Threads int
	// DSCPs gives each thread a stream of packets for each of them; packets of the streams take turns.
	DSCPs []uint8
	// Flows is the number of UDP flows of each stream; its packets belong to them in turn.
	Flows int
	// Packets is how many packets each stream gets through.
	Packets int
	// FrameBytes is the length of a packet, Ethernet header included.
	FrameBytes int
	// Destination is who the packets are for, and Gateway whom the device hands them to; without a gateway
	// they are for nobody in particular.
	Destination netip.Addr
	Gateway     net.HardwareAddr
}

// Result tells what was sent.
type Result struct {
	// Sent is what the device took, Refused what its queueing discipline dropped at once.
	Sent, Refused uint64
	// Elapsed is the time from the first packet to the last.
	Elapsed time.Duration
}

// stream is a stream of packets, which to the generator is a device of its own.
type stream struct {
	name   string // device@number
	thread int
	dscp   uint8
	ports  int // the first of its source ports
}

func (c Config) streams() []stream {
	var streams []stream
	for thread := range c.Threads {
		for _, dscp := range c.DSCPs {
			n := len(streams)
			streams = append(streams, stream{
				name:   fmt.Sprintf("%s@%d", c.Device, n),
				thread: thread,
				dscp:   dscp,
				ports:  firstPort + n*streamPorts,
			})
		}
	}
	return streams
}

// Run sends, and returns when all streams have got their packets through. It has to be called on a
// thread that is in the device's network namespace.
func Run(ctx context.Context, c Config) (_ Result, err error) {
	streams := c.streams()
	if len(streams) == 0 || c.Flows < 1 || c.Flows > streamPorts || streams[len(streams)-1].ports+c.Flows > 1<<16 {
		return Result{}, fmt.Errorf("send by pktgen on %s: %d streams of %d flows", c.Device, len(streams), c.Flows)
	}
	defer func() { err = errors.Join(err, write(control, "reset")) }()
	for _, s := range streams {
		if err := write(fmt.Sprintf("kpktgend_%d", s.thread), "add_device "+s.name); err != nil {
			return Result{}, err
		}
		if err := write(s.name, c.settings(s, len(streams) > c.Threads)...); err != nil {
			return Result{}, err
		}
	}
	if err := start(ctx); err != nil {
		return Result{}, err
	}
	var total Result
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for _, s := range streams {
		text, err := os.ReadFile(filepath.Join(directory, s.name))
		if err != nil {
			return Result{}, fmt.Errorf("read the result of pktgen on %s: %w", s.name, err)
		}
		r, err := parse(string(text))
		if err != nil {
			return Result{}, fmt.Errorf("read the result of pktgen on %s: %w", s.name, err)
		}
		total.Sent += r.sent
		total.Refused += r.refused
		first, last = min(first, r.started), max(last, r.stopped)
	}
	total.Elapsed = last - first
	return total, nil
}

// settings are the commands for a stream.
func (c Config) settings(s stream, shared bool) []string {
	delay := 0
	if shared {
		// Without any, the streams of a thread would be sent one after the other.
		delay = 1
	}
	settings := []string{
		"xmit_mode queue_xmit",
		fmt.Sprintf("count %d", c.Packets),
		fmt.Sprintf("pkt_size %d", c.FrameBytes),
		"dst_mac 02:00:00:00:00:01",
		"dst 10.77.0.2",
		fmt.Sprintf("udp_src_min %d", s.ports),
		fmt.Sprintf("udp_src_max %d", s.ports+c.Flows),
		fmt.Sprintf("tos %02x", s.dscp<<2),
		fmt.Sprintf("delay %d", delay),
	}
	if c.Gateway != nil {
		settings = append(settings, "dst_mac "+c.Gateway.String(), "dst "+c.Destination.String())
	}
	return settings
}

// start lets all streams go and waits for their end. Another process does the waiting: the generator
// takes any signal for a wish to wait no longer, and the Go runtime sends itself many.
func start(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", "echo start >"+filepath.Join(directory, control))
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("start pktgen: %w: %s", err, bytes.TrimSpace(output))
	}
	return nil
}

// write writes commands to a file of the generator, which takes one at a time.
func write(name string, commands ...string) error {
	file, err := os.OpenFile(filepath.Join(directory, name), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set pktgen up: %w", err)
	}
	for _, command := range commands {
		if _, err := file.WriteString(command + "\n"); err != nil {
			return errors.Join(fmt.Errorf("pktgen, %q to %s: %w", command, name, err), file.Close())
		}
	}
	return file.Close()
}

// report is what the generator says of a stream. Times are on the monotonic clock.
type report struct {
	sent, refused    uint64
	started, stopped time.Duration
}

var (
	doneLine = regexp.MustCompile(`(?m)^Result: OK: \d+\(`)
	counts   = regexp.MustCompile(`pkts-sofar: (\d+)\s+errors: (\d+)\s+started: (\d+)us\s+stopped: (\d+)us`)
)

func parse(text string) (report, error) {
	fields := counts.FindStringSubmatch(text)
	if fields == nil || !doneLine.MatchString(text) {
		return report{}, fmt.Errorf("no result in %q", strings.TrimSpace(text))
	}
	var numbers [4]uint64
	for i, digits := range fields[1:] {
		var err error
		if numbers[i], err = strconv.ParseUint(digits, 10, 50); err != nil {
			return report{}, err
		}
	}
	return report{
		sent:    numbers[0],
		refused: numbers[1],
		started: time.Duration(numbers[2]) * time.Microsecond,
		stopped: time.Duration(numbers[3]) * time.Microsecond,
	}, nil
}
