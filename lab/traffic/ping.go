// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

const (
	icmpEcho        = 8
	icmpEchoReply   = 0
	icmpHeaderBytes = 8
	pingPayload     = 56 // as ping(8)
	pingPatience    = time.Second
)

// PingConfig is a series of ICMP echo requests.
type PingConfig struct {
	Interval time.Duration
	DSCP     uint8
}

// Ping is a series under way.
type Ping struct {
	config    PingConfig
	addresses []netip.Addr
	conn      *net.IPConn
	id        uint16
	cancel    context.CancelFunc
	sending   sync.WaitGroup
	receiving sync.WaitGroup

	mu   sync.Mutex
	sent []time.Time // by sequence number
	rtts []time.Duration
	errs []error
}

// StartPing sends an echo request each interval, to the addresses in turn, until Stop. Paths differ
// by address, so that several of them make the result depend less on one hash.
func StartPing(ctx context.Context, from Netns, source netip.Addr, addresses []netip.Addr, c PingConfig) (*Ping, error) {
	p := &Ping{config: c, addresses: addresses, id: uint16(os.Getpid())}
	err := from.Do(func() error {
		conn, err := (&net.ListenConfig{Control: setTOS(c.DSCP)}).ListenPacket(ctx, "ip4:icmp", source.String())
		if err != nil {
			return err
		}
		p.conn = conn.(*net.IPConn)
		raw, err := p.conn.SyscallConn()
		if err != nil {
			return err
		}
		return control(raw, stampReceives)
	})
	if err != nil {
		return nil, fmt.Errorf("start ping: %w", err)
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.receiving.Go(func() { p.fail(p.receive()) })
	p.sending.Go(func() { p.fail(p.send(ctx)) })
	return p, nil
}

func (p *Ping) fail(err error) {
	if err == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, err)
}

func (p *Ping) send(ctx context.Context) error {
	ticker := time.NewTicker(p.config.Interval)
	defer ticker.Stop()
	packet := make([]byte, icmpHeaderBytes+pingPayload)
	packet[0] = icmpEcho
	binary.BigEndian.PutUint16(packet[4:], p.id)
	for number := 0; ; number++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		binary.BigEndian.PutUint16(packet[6:], uint16(number))
		binary.BigEndian.PutUint16(packet[2:], 0)
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
		to := &net.IPAddr{IP: p.addresses[number%len(p.addresses)].AsSlice()}
		// Locked over the send: the reply can be there before the call returns.
		p.mu.Lock()
		p.sent = append(p.sent, time.Now())
		_, err := p.conn.WriteToIP(packet, to)
		p.mu.Unlock()
		if err != nil {
			return fmt.Errorf("ping: %w", err)
		}
	}
}

func checksum(packet []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(packet); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (p *Ping) receive() error {
	packet := make([]byte, 256)
	oob := make([]byte, timestampSpace)
	for {
		n, oobn, _, _, err := p.conn.ReadMsgIP(packet, oob)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive ping: %w", err)
		}
		icmp := packet[:n]
		// A raw socket delivers the IP header as well.
		if header := int(icmp[0]&0xf) * 4; icmp[0]>>4 == 4 && n >= header+icmpHeaderBytes {
			icmp = icmp[header:]
		}
		if icmp[0] != icmpEchoReply || binary.BigEndian.Uint16(icmp[4:]) != p.id {
			continue
		}
		at, err := receiveTime(oob[:oobn])
		if err != nil {
			return fmt.Errorf("receive ping: %w", err)
		}
		p.mu.Lock()
		number := int(binary.BigEndian.Uint16(icmp[6:]))
		if number < len(p.sent) {
			p.rtts = append(p.rtts, at.Sub(p.sent[number]))
		}
		p.mu.Unlock()
	}
}

// PingResult is what came back.
type PingResult struct {
	Sent int
	// RTTs are the round-trip times of the replies, in the order of their arrival.
	RTTs []time.Duration
}

// Stop ends the series, gives the last replies time to arrive, and tells what came back.
func (p *Ping) Stop(ctx context.Context) (PingResult, error) {
	p.cancel()
	p.sending.Wait()
	for deadline := time.Now().Add(pingPatience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		p.mu.Lock()
		all := len(p.rtts) == len(p.sent)
		p.mu.Unlock()
		if all {
			break
		}
	}
	err := p.conn.Close()
	p.receiving.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return PingResult{Sent: len(p.sent), RTTs: p.rtts}, errors.Join(append(p.errs, err)...)
}
