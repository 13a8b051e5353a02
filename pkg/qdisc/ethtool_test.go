// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	ethtoolGetChannels = 0x3c
	ethtoolSetChannels = 0x3d
)

// ethtoolChannelsData is struct ethtool_channels.
type ethtoolChannelsData struct {
	Cmd                                 uint32
	MaxRx, MaxTx, MaxOther, MaxCombined uint32
	Rx, Tx, Other, Combined             uint32
}

// ethtoolChannels makes one request and returns what the kernel left in data.
func ethtoolChannels(fd int, device string, cmd uint32, data ethtoolChannelsData) (ethtoolChannelsData, error) {
	data.Cmd = cmd
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], device)
	request.data = unsafe.Pointer(&data)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return data, errno
	}
	return data, nil
}
