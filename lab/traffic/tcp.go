// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	tcpWriteBytes = 64 << 10
	tcpReadBytes  = 1 << 20
	// A receiver is woken when this much has arrived: to wake it for each packet would cost an
	// emulated CPU more than the packet.
	tcpWakeBytes = 128 << 10
)

// TCPConfig is bulk TCP.
type TCPConfig struct {
	Flows int
	DSCP  uint8
	// Congestion is the congestion control; empty is the kernel's choice.
	Congestion string
	// Mark, unless 0, is that of the flows' packets at the sender (SO_MARK).
	Mark uint32
}

// apply sets what the kernel does not do by itself, before a socket connects.
func (c TCPConfig) apply(fd int) error {
	if c.Congestion != "" {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, c.Congestion); err != nil {
			return os.NewSyscallError("set congestion control "+c.Congestion, err)
		}
	}
	if c.Mark != 0 {
		return os.NewSyscallError("set SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(c.Mark)))
	}
	return nil
}

// TCP is bulk TCP under way: each flow sends as fast as it can.
type TCP struct {
	stopping  atomic.Bool
	senders   []net.Conn
	receivers []net.Conn
	running   sync.WaitGroup

	mu   sync.Mutex
	errs []error
}

// StartTCP connects all flows and then starts them together. They run until Stop.
func StartTCP(ctx context.Context, from, to Netns, address netip.Addr, c TCPConfig) (_ *TCP, err error) {
	t := &TCP{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start TCP: %w", err), t.closeAll())
		}
	}()
	var listener net.Listener
	err = to.Do(func() (err error) {
		listener, err = (&net.ListenConfig{KeepAlive: -1}).Listen(ctx, "tcp4", netip.AddrPortFrom(address, 0).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	dialer := net.Dialer{KeepAlive: -1, Control: func(network, addr string, raw syscall.RawConn) error {
		return errors.Join(setTOS(c.DSCP)(network, addr, raw), control(raw, c.apply))
	}}
	for range c.Flows {
		err := from.Do(func() error {
			conn, err := dialer.DialContext(ctx, "tcp4", listener.Addr().String())
			if err == nil {
				t.senders = append(t.senders, conn)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		conn, err := listener.Accept()
		if err != nil {
			return nil, err
		}
		t.receivers = append(t.receivers, conn)
		err = onSocket(conn, func(fd int) error {
			return os.NewSyscallError("set SO_RCVLOWAT", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, tcpWakeBytes))
		})
		if err != nil {
			return nil, err
		}
	}
	// One for all flows: nobody writes to them.
	data, nothing := make([]byte, tcpWriteBytes), make([]byte, tcpReadBytes)
	for _, conn := range t.receivers {
		t.running.Go(func() { t.fail(t.receive(conn, nothing)) })
	}
	for _, conn := range t.senders {
		t.running.Go(func() { t.fail(t.send(conn, data)) })
	}
	return t, nil
}

func (t *TCP) fail(err error) {
	if err == nil || t.stopping.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

func (t *TCP) send(conn net.Conn, data []byte) error {
	for {
		if _, err := conn.Write(data); err != nil {
			return err
		}
	}
}

// receive reads without copying: the content is of no interest, and the copies would cost a third
// of what an emulated CPU can do. So nothing is as long as one read, and nothing gets into it.
func (t *TCP) receive(conn net.Conn, nothing []byte) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failed = unix.Recvfrom(int(fd), nothing, unix.MSG_TRUNC)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the sender closed the connection")
		}
	}
}

// onSocket calls f with the file descriptor of a connection.
func onSocket(conn net.Conn, f func(fd int) error) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, f)
}

// Received is how many bytes of payload each flow has delivered so far, in order, by the count of the
// receiver's kernel.
func (t *TCP) Received() ([]uint64, error) {
	var received []uint64
	for _, conn := range t.receivers {
		info, err := tcpInfo(conn)
		if err != nil {
			return nil, fmt.Errorf("count what TCP received: %w", err)
		}
		received = append(received, info.Bytes_received)
	}
	return received, nil
}

func tcpInfo(conn net.Conn) (info *unix.TCPInfo, err error) {
	err = onSocket(conn, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return os.NewSyscallError("get TCP_INFO", err)
	})
	return info, err
}

// TCPSignals is what the network told the senders so far.
type TCPSignals struct {
	// Retransmits counts the segments that were sent again, Marked those that were delivered with a
	// mark of congestion.
	Retransmits, Marked uint64
	// RTTs are the smoothed round-trip times of the flows: in full queues, the delay that they make
	// themselves.
	RTTs []time.Duration
}

// Signals are those of all flows.
func (t *TCP) Signals() (TCPSignals, error) {
	var s TCPSignals
	for _, conn := range t.senders {
		info, err := tcpInfo(conn)
		if err != nil {
			return s, fmt.Errorf("ask the senders of TCP: %w", err)
		}
		s.Retransmits += uint64(info.Total_retrans)
		s.Marked += uint64(info.Delivered_ce)
		s.RTTs = append(s.RTTs, time.Duration(info.Rtt)*time.Microsecond)
	}
	return s, nil
}

// Stop ends all flows at once, and returns what went wrong until then. What is under way is thrown
// away.
func (t *TCP) Stop() error {
	t.stopping.Store(true)
	err := t.closeAll()
	t.running.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.errs) > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d TCP sockets failed, the first with: %w", len(t.errs), 2*len(t.senders), t.errs[0]))
	}
	return err
}

// closeAll resets the connections, so that nothing goes on after it.
func (t *TCP) closeAll() error {
	var errs []error
	for _, conn := range append(t.senders, t.receivers...) {
		errs = append(errs, conn.(*net.TCPConn).SetLinger(0), conn.Close())
	}
	return errors.Join(errs...)
}
