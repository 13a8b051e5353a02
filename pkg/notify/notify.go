// SPDX-License-Identifier: BSD-2-Clause

package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// bufferBytes holds what the kernel tells of an mq with thousands of leaves that comes or goes.
const bufferBytes = 1 << 20

// Subscription is a stream of notifications about one device.
type Subscription struct {
	// C gets a value after every change, one for all that happened since it was read.
	C <-chan struct{}

	changed  chan struct{}
	index    atomic.Int32
	name     string
	overruns atomic.Uint64
	sockets  []*os.File
	files    *os.File // inotify
	readers  sync.WaitGroup
}

// Subscribe follows the device with an index in the network namespace of the calling thread, and
// whatever device takes the name.
func Subscribe(index int, name string) (*Subscription, error) {
	changed := make(chan struct{}, 1)
	s := &Subscription{C: changed, changed: changed, name: name}
	s.Follow(index)
	if err := s.watchFiles(); err != nil {
		return nil, err
	}
	rtnl, err := listen(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_TC)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.read(rtnl, s.concerns)
	group, err := ethtoolGroup()
	if err != nil {
		s.Close()
		return nil, err
	}
	if group == 0 {
		return s, nil
	}
	ethtool, err := listen(unix.NETLINK_GENERIC, group)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.read(ethtool, func(syscall.NetlinkMessage) bool { return true })
	return s, nil
}

// ethtoolGroup is the multicast group of ethtool's notifications; 0 where the kernel has none.
func ethtoolGroup() (uint32, error) {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // built without CONFIG_ETHTOOL_NETLINK
	}
	if err != nil {
		return 0, fmt.Errorf("look for ethtool's notifications: %w", err)
	}
	for _, group := range family.Groups {
		if group.Name == unix.ETHTOOL_MCGRP_MONITOR_NAME {
			return group.ID, nil
		}
	}
	return 0, nil
}

// listen opens a socket that gets the notifications of some groups.
func listen(protocol int, groups ...uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket for notifications: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	// The usual limit of a socket's buffer has room for a few hundred notifications. A process that
	// may not exceed it makes do.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for _, group := range groups {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(group))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to netlink notifications: %w", err), file.Close())
	}
	return file, nil
}

// read tells of the messages of a socket that concern the device, until the socket is closed.
func (s *Subscription) read(socket *os.File, concerns func(syscall.NetlinkMessage) bool) {
	s.sockets = append(s.sockets, socket)
	s.readers.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, err := socket.Read(buffer)
			switch {
			case errors.Is(err, unix.ENOBUFS): // notifications are lost, of whatever device
				s.overruns.Add(1)
				s.tell()
				continue
			case err != nil:
				return
			}
			messages, err := syscall.ParseNetlinkMessage(buffer[:n])
			if err != nil {
				s.tell() // better one look too many
				continue
			}
			for _, message := range messages {
				if concerns(message) {
					s.tell()
					break
				}
			}
		}
	})
}

// watchFiles tells of what is removed from directories that are watched.
func (s *Subscription) watchFiles() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	s.files = os.NewFile(uintptr(fd), "inotify")
	s.sockets = append(s.sockets, s.files)
	s.readers.Go(func() {
		buffer := make([]byte, 1<<12)
		for {
			if _, err := s.files.Read(buffer); err != nil {
				return
			}
			s.tell()
		}
	})
	return nil
}

// Watch makes C tell when something is removed from a directory, or the directory is. Where it is not
// there, there is nothing to watch, and that is no error. A directory that takes its place has to be
// watched anew; one that is watched already may be.
func (s *Subscription) Watch(dir string) error {
	connection, err := s.files.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	var added error
	err = connection.Control(func(fd uintptr) {
		_, added = unix.InotifyAddWatch(int(fd), dir, unix.IN_DELETE|unix.IN_DELETE_SELF|unix.IN_MOVED_FROM|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
	})
	if errors.Is(added, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, added); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	return nil
}

func (s *Subscription) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// concerns tells whether a route netlink message is about the device, or about one of its name.
func (s *Subscription) concerns(message syscall.NetlinkMessage) bool {
	switch message.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(message.Data) < unix.SizeofIfInfomsg {
			return false
		}
		if nl.DeserializeIfInfomsg(message.Data).Index == s.index.Load() {
			return true
		}
		attrs, err := nl.ParseRouteAttr(message.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return false
		}
		for _, attr := range attrs {
			if attr.Attr.Type == unix.IFLA_IFNAME {
				return nl.BytesToString(attr.Value) == s.name
			}
		}
		return false
	default: // qdiscs, classes, filters, chains, actions
		return len(message.Data) >= nl.SizeofTcMsg && nl.DeserializeTcMsg(message.Data).Ifindex == s.index.Load()
	}
}

// Follow changes the index of the device: it is gone, and another has come in its place.
func (s *Subscription) Follow(index int) { s.index.Store(int32(index)) }

// Overruns counts how often the kernel had more to tell than the sockets could hold.
func (s *Subscription) Overruns() uint64 { return s.overruns.Load() }

// Close ends the subscription.
func (s *Subscription) Close() error {
	var errs []error
	for _, socket := range s.sockets {
		errs = append(errs, socket.Close())
	}
	s.readers.Wait()
	return errors.Join(errs...)
}
