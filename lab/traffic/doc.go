// SPDX-License-Identifier: BSD-2-Clause

// Package traffic makes the load of experiments, and the probes beside it: bulk TCP, paced or
// saturating UDP with every packet numbered, and pings.
//
// Senders and receivers are sockets in network namespaces; the goroutines behind them may run
// anywhere. Delays are taken between the moment before a send and the kernel's own receive time, so
// that a busy program in between does not count.
package traffic

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Netns is a network namespace to make sockets in.
type Netns interface {
	// Do calls f on a thread that is in the namespace.
	Do(f func() error) error
}

// setTOS makes a control function for sockets that send with a DSCP.
func setTOS(dscp uint8) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, int(dscp)<<2)
		})
	}
}

// control calls f with the file descriptor of c.
func control(c syscall.RawConn, f func(fd int) error) error {
	var failed error
	if err := c.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// stampReceives makes the kernel report when packets of a socket arrived, by the real-time clock.
func stampReceives(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
}

// timestampSpace is the room that the control message of one timestamp needs.
var timestampSpace = unix.CmsgSpace(16)

// receiveTime finds the kernel's receive time in control messages.
func receiveTime(oob []byte) (time.Time, error) {
	for len(oob) > 0 {
		header, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return time.Time{}, fmt.Errorf("parse a control message: %w", err)
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS && len(data) == 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(data)), int64(binary.NativeEndian.Uint64(data[8:]))), nil
		}
		oob = rest
	}
	return time.Time{}, fmt.Errorf("a packet without a receive time")
}
