// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// HeaderBytes is what a UDP packet has beside its payload: Ethernet, IPv4 and UDP headers.
const HeaderBytes = 14 + 20 + 8

// A payload begins with the flow's index (4 bytes), the packet's number (8) and its time of sending
// (8, nanoseconds of the real-time clock).
const udpPayloadMin = 4 + 8 + 8

const (
	// A sender that fell behind by more than this, because it was blocked or had no CPU, does not
	// catch up.
	udpCatchUp = 20 * time.Millisecond
	// Socket buffer of the receiver: one that overflows would look like loss in the network.
	udpReceiveBuffer = 64 << 20
	// How often the receiver looks for packets. What it would see earlier it has no use for: the kernel
	// notes when a packet came.
	udpReceiveInterval = 5 * time.Millisecond
	// Packets may wait this long in a queue; after that much silence nothing more will come.
	udpSilence = time.Second
)

// UDPConfig is a number of equal UDP flows.
type UDPConfig struct {
	Flows int
	DSCP  uint8
	// FrameBytes is the length of the packets, Ethernet header included.
	FrameBytes int
	// RateBitsPerSecond is what each flow wants to send, counted in frames. A flow that its socket
	// blocks sends less.
	RateBitsPerSecond float64
	// Delays keeps the one-way delay of every packet.
	Delays bool
}

// UDP is UDP under way.
type UDP struct {
	config   UDPConfig
	cancel   context.CancelFunc // ends the senders
	silence  context.CancelFunc // ends the receiver
	senders  []*net.UDPConn
	receiver *net.UDPConn
	sending  sync.WaitGroup
	receives sync.WaitGroup
	sent     []atomic.Uint64
	received []atomic.Uint64
	last     atomic.Int64 // when packets arrived last, by the real-time clock

	mu   sync.Mutex
	errs []error

	// Of the receiving goroutine.
	highest   []uint64
	reordered uint64
	delays    []time.Duration
}

// StartUDP starts the flows. They run until Stop.
func StartUDP(ctx context.Context, from, to Netns, address netip.Addr, c UDPConfig) (_ *UDP, err error) {
	if c.FrameBytes < HeaderBytes+udpPayloadMin || c.RateBitsPerSecond <= 0 {
		return nil, fmt.Errorf("start UDP: frames of %d bytes (%d is the least) at %v bit/s", c.FrameBytes, HeaderBytes+udpPayloadMin, c.RateBitsPerSecond)
	}
	u := &UDP{
		config:   c,
		sent:     make([]atomic.Uint64, c.Flows),
		received: make([]atomic.Uint64, c.Flows),
		highest:  make([]uint64, c.Flows),
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start UDP: %w", err), u.closeAll())
		}
	}()
	err = to.Do(func() error {
		conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp4", netip.AddrPortFrom(address, 0).String())
		if err != nil {
			return err
		}
		u.receiver = conn.(*net.UDPConn)
		raw, err := u.receiver.SyscallConn()
		if err != nil {
			return err
		}
		return control(raw, func(fd int) error {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpReceiveBuffer); err != nil {
				return fmt.Errorf("set the receive buffer: %w", err)
			}
			if !c.Delays {
				return nil
			}
			return stampReceives(fd)
		})
	})
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Control: setTOS(c.DSCP)}
	for range c.Flows {
		err := from.Do(func() error {
			conn, err := dialer.DialContext(ctx, "udp4", u.receiver.LocalAddr().String())
			if err == nil {
				u.senders = append(u.senders, conn.(*net.UDPConn))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	listening, silence := context.WithCancel(ctx)
	ctx, u.cancel = context.WithCancel(ctx)
	u.silence = silence
	u.receives.Go(func() { u.fail(u.receive(listening)) })
	for i, conn := range u.senders {
		u.sending.Go(func() { u.fail(u.send(ctx, i, conn)) })
	}
	return u, nil
}

func (u *UDP) fail(err error) {
	if err == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.errs = append(u.errs, err)
}

func (u *UDP) send(ctx context.Context, flow int, conn *net.UDPConn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Now()) })
	defer stop()
	payload := make([]byte, u.config.FrameBytes-HeaderBytes)
	binary.BigEndian.PutUint32(payload, uint32(flow))
	interval := time.Duration(float64(u.config.FrameBytes) * 8 * float64(time.Second) / u.config.RateBitsPerSecond)
	start := time.Now()
	// Flows that start in step would stay in step: each has its own share of the first interval.
	due := interval * time.Duration(flow) / time.Duration(u.config.Flows)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for number := uint64(1); ; number++ {
		elapsed := time.Since(start)
		if due > elapsed {
			timer.Reset(due - elapsed)
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		} else {
			due = max(due, elapsed-udpCatchUp)
		}
		due += interval
		binary.BigEndian.PutUint64(payload[4:], number)
		binary.BigEndian.PutUint64(payload[12:], uint64(time.Now().UnixNano()))
		_, err := conn.Write(payload)
		if ctx.Err() != nil {
			if err == nil {
				u.sent[flow].Add(1)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("UDP flow %d: %w", flow, err)
		}
		u.sent[flow].Add(1)
	}
}

func (u *UDP) receive(ctx context.Context) error {
	raw, err := u.receiver.SyscallConn()
	if err != nil {
		return err
	}
	oobBytes := 0
	if u.config.Delays {
		oobBytes = timestampSpace
	}
	// The rest of the packets is thrown away: nobody looks at it.
	packets := newBatch(udpPayloadMin, oobBytes)
	ticker := time.NewTicker(udpReceiveInterval)
	defer ticker.Stop()
	for {
		n := batchPackets
		for n == batchPackets {
			err := control(raw, func(fd int) (err error) {
				n, err = packets.receive(fd)
				return err
			})
			if err != nil {
				return err
			}
			for i := range n {
				if err := u.count(packets.packet(i)); err != nil {
					return err
				}
			}
			if n > 0 {
				u.last.Store(time.Now().UnixNano())
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// count takes note of one packet.
func (u *UDP) count(payload, oob []byte) error {
	if len(payload) < udpPayloadMin {
		return fmt.Errorf("receive UDP: a packet of %d bytes is none of ours", len(payload))
	}
	flow := binary.BigEndian.Uint32(payload)
	if int(flow) >= u.config.Flows {
		return fmt.Errorf("receive UDP: flow %d is none of ours", flow)
	}
	number := binary.BigEndian.Uint64(payload[4:])
	if number < u.highest[flow] {
		u.reordered++
	}
	u.highest[flow] = max(u.highest[flow], number)
	u.received[flow].Add(1)
	if !u.config.Delays {
		return nil
	}
	at, err := receiveTime(oob)
	if err != nil {
		return fmt.Errorf("receive UDP: %w", err)
	}
	u.delays = append(u.delays, at.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(payload[12:])))))
	return nil
}

// Received is how many packets of each flow have arrived so far.
func (u *UDP) Received() []uint64 { return load(u.received) }

// Sent is how many packets of each flow their sockets have taken so far.
func (u *UDP) Sent() []uint64 { return load(u.sent) }

func load(counters []atomic.Uint64) []uint64 {
	values := make([]uint64, len(counters))
	for i := range counters {
		values[i] = counters[i].Load()
	}
	return values
}

// UDPResult is what became of the packets.
type UDPResult struct {
	// Sent counts the packets that each flow's socket took, Received those that arrived.
	Sent, Received []uint64
	// Reordered counts packets that arrived after a later one of their flow.
	Reordered uint64
	// Delays are the one-way delays of the packets that arrived, if they were to be kept.
	Delays []time.Duration
}

// Lost is the share of the packets that did not arrive.
func (r UDPResult) Lost() float64 {
	var sent, received uint64
	for i := range r.Sent {
		sent += r.Sent[i]
		received += r.Received[i]
	}
	if sent == 0 {
		return 0
	}
	return float64(sent-received) / float64(sent)
}

// StopSending ends the senders; what their sockets took is still delivered.
func (u *UDP) StopSending() {
	u.cancel()
	u.sending.Wait()
}

// Stop ends the senders, waits until nothing more arrives, and tells what became of the packets.
func (u *UDP) Stop(ctx context.Context) (UDPResult, error) {
	u.StopSending()
	stopped := time.Now().UnixNano()
	for {
		silent := time.Duration(time.Now().UnixNano() - max(u.last.Load(), stopped))
		if silent >= udpSilence || total(u.Received()) == total(u.Sent()) || ctx.Err() != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	u.silence()
	u.receives.Wait()
	err := u.closeAll()
	u.mu.Lock()
	defer u.mu.Unlock()
	r := UDPResult{Sent: u.Sent(), Received: u.Received(), Reordered: u.reordered, Delays: u.delays}
	return r, errors.Join(append(u.errs, err, ctx.Err())...)
}

func total(counts []uint64) uint64 {
	sum := uint64(0)
	for _, n := range counts {
		sum += n
	}
	return sum
}

func (u *UDP) closeAll() error {
	var errs []error
	for _, conn := range u.senders {
		errs = append(errs, conn.Close())
	}
	if u.receiver != nil {
		errs = append(errs, u.receiver.Close())
	}
	return errors.Join(errs...)
}
