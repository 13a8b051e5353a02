// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchPackets is how many packets one system call receives at most.
const batchPackets = 64

// batch receives many packets with one system call: with a call for each, an emulated CPU would have
// more to do for them than the shaper has.
type batch struct {
	headers  [batchPackets]mmsghdr
	iovecs   [batchPackets]unix.Iovec
	payloads [batchPackets][]byte
	oobs     [batchPackets][]byte
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// newBatch makes room for the first bytes of packets, and for control messages.
func newBatch(payloadBytes, oobBytes int) *batch {
	b := &batch{}
	for i := range b.headers {
		b.payloads[i], b.oobs[i] = make([]byte, payloadBytes), make([]byte, oobBytes)
		b.iovecs[i].Base = unsafe.SliceData(b.payloads[i])
		b.iovecs[i].SetLen(payloadBytes)
		b.headers[i].header.Iov = &b.iovecs[i]
		b.headers[i].header.SetIovlen(1)
		b.headers[i].header.Control = unsafe.SliceData(b.oobs[i])
	}
	return b
}

// receive takes what is there, and does not wait.
func (b *batch) receive(fd int) (packets int, err error) {
	for i := range b.headers {
		b.headers[i].header.SetControllen(len(b.oobs[i]))
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers)), batchPackets, unix.MSG_DONTWAIT, 0, 0)
	if errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.EINTR) {
		return 0, nil
	}
	if errno != 0 {
		return 0, fmt.Errorf("receive packets: %w", os.NewSyscallError("recvmmsg", errno))
	}
	return int(n), nil
}

// packet is the beginning of a packet received last, and its control messages.
func (b *batch) packet(i int) (payload, oob []byte) {
	return b.payloads[i][:b.headers[i].length], b.oobs[i][:b.headers[i].header.Controllen]
}
