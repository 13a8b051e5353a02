// SPDX-License-Identifier: BSD-2-Clause

// Package pktgen sends packets by the kernel's packet generator, which hands them to a device's queueing
// disciplines one after the other and does little else: what remains of the time is theirs.
package pktgen

import (
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
	"slices"
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
	// Packets is how many packets each stream gets through. Threads begin up to a tenth of a second
	// apart, and so some may have ended before others begin.
	Packets int
	// Span, unless 0, is how long to count while all threads send, instead of so many packets.
	Span time.Duration
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
	if c.Span > 0 {
		return c.count(ctx, streams)
	}
	if err := start(ctx).Run(); err != nil {
		return Result{}, fmt.Errorf("start pktgen: %w", err)
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
		fmt.Sprintf("count %d", c.Packets), // 0 is for ever
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

// start is a process that lets all streams go and waits for their end. It has to be another one: the
// generator takes any signal for a wish to wait no longer, and the Go runtime sends itself many.
func start(ctx context.Context) *exec.Cmd {
	return exec.CommandContext(ctx, "sh", "-c", "echo start >"+filepath.Join(directory, control))
}

// How often to look whether all threads send, and for how long.
const (
	startInterval = 20 * time.Millisecond
	startPatience = 5 * time.Second
)

// count lets all streams go on until they have been counted for the span, all at the same time.
func (c Config) count(ctx context.Context, streams []stream) (total Result, err error) {
	started := start(ctx)
	if err := started.Start(); err != nil {
		return Result{}, fmt.Errorf("start pktgen: %w", err)
	}
	defer func() {
		stop := write(control, "stop")
		if stop != nil {
			_ = started.Process.Kill() // which it takes for a wish to stop
		}
		err = errors.Join(err, stop, started.Wait())
	}()
	var before []report
	for deadline := time.Now().Add(startPatience); ; time.Sleep(startInterval) {
		if before, err = reports(streams); err != nil {
			return Result{}, err
		}
		if !slices.ContainsFunc(before, func(r report) bool { return r.sent == 0 }) {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return Result{}, fmt.Errorf("pktgen on %s: not all of %d streams have begun after %v", c.Device, len(streams), startPatience)
		}
	}
	time.Sleep(c.Span)
	after, err := reports(streams)
	if err != nil {
		return Result{}, err
	}
	total.Elapsed = c.Span
	for i := range streams {
		// Each was read at a moment of its own.
		share := float64(c.Span) / float64(after[i].stopped-before[i].stopped)
		total.Sent += uint64(share * float64(after[i].sent-before[i].sent))
		total.Refused += uint64(share * float64(after[i].refused-before[i].refused))
	}
	return total, nil
}

// reports are what the generator says of streams that go on.
func reports(streams []stream) (reports []report, err error) {
	for _, s := range streams {
		text, err := os.ReadFile(filepath.Join(directory, s.name))
		if err != nil {
			return nil, fmt.Errorf("read how far pktgen is with %s: %w", s.name, err)
		}
		r, err := parseCounts(string(text))
		if err != nil {
			return nil, fmt.Errorf("read how far pktgen is with %s: %w", s.name, err)
		}
		reports = append(reports, r)
	}
	return reports, nil
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

// report is what the generator says of a stream. Times are on the monotonic clock; while the stream goes
// on, stopped is now.
type report struct {
	sent, refused    uint64
	started, stopped time.Duration
}

var (
	doneLine = regexp.MustCompile(`(?m)^Result: OK: \d+\(`)
	counts   = regexp.MustCompile(`pkts-sofar: (\d+)\s+errors: (\d+)\s+started: (\d+)us\s+stopped: (\d+)us`)
)

// parse reads the report of a stream that has ended.
func parse(text string) (report, error) {
	if !doneLine.MatchString(text) {
		return report{}, fmt.Errorf("no result in %q", strings.TrimSpace(text))
	}
	return parseCounts(text)
}

func parseCounts(text string) (report, error) {
	fields := counts.FindStringSubmatch(text)
	if fields == nil {
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
