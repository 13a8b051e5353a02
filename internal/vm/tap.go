// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapDevices is the number of virtio-net devices of a guest.
const tapDevices = 2

// bridgedTaps makes tap devices and a bridge between them in the thread's
// network namespace, and returns the files of their queues, device by device.
// The devices last as long as the files. On error, the files made so far are
// returned for the caller to close.
func bridgedTaps(queues int) ([]*os.File, error) {
	// The bridge has nothing to say: its own IPv6 messages would turn up in the
	// guest's counters.
	const noIPv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
	if err := os.WriteFile(noIPv6, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("keep the bridge quiet: %w", err)
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "bridge"
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("make the bridge: %w", err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return nil, fmt.Errorf("bring the bridge up: %w", err)
	}
	var files []*os.File
	for device := range tapDevices {
		name := fmt.Sprintf("tap%d", device)
		for range queues {
			file, err := openTapQueue(name)
			if err != nil {
				return files, fmt.Errorf("open a queue of %s: %w", name, err)
			}
			files = append(files, file)
		}
		if err := enslave(name, bridge); err != nil {
			return files, err
		}
	}
	return files, nil
}

// openTapQueue opens one more queue of the tap device, and makes it if there is none.
func openTapQueue(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(fmt.Errorf("TUNSETIFF: %w", err), file.Close())
	}
	return file, nil
}

func enslave(name string, bridge netlink.Link) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("put %s under the bridge: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}
