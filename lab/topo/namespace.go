// SPDX-License-Identifier: BSD-2-Clause

package topo

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is a named network namespace, as `ip netns` knows them.
type Namespace struct {
	Name   string
	handle netns.NsHandle
}

// NewNamespace makes a network namespace with lo up.
func NewNamespace(name string) (*Namespace, error) {
	n := &Namespace{Name: name, handle: netns.None()}
	err := onThread(func() (err error) {
		n.handle, err = netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("make the network namespace %s: %w", name, err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo of %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo of %s up: %w", name, err)
		}
		// Router solicitations and duplicate address detection would be traffic of nobody's.
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Do calls f on a thread that is in the namespace: sockets that f makes belong to it.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter the network namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// Close deletes the namespace; it is gone when its last socket is.
func (n *Namespace) Close() error {
	if !n.handle.IsOpen() {
		return nil
	}
	if err := errors.Join(n.handle.Close(), netns.DeleteNamed(n.Name)); err != nil {
		return fmt.Errorf("delete the network namespace %s: %w", n.Name, err)
	}
	return nil
}

// netnsOfThread is the network namespace that the calling thread is in.
func netnsOfThread() (netns.NsHandle, error) {
	handle, err := netns.Get()
	if err != nil {
		return handle, fmt.Errorf("get the thread's network namespace: %w", err)
	}
	return handle, nil
}

// onThread calls f on a thread of its own choice and puts the thread back into the namespace it was
// in. A thread that cannot go back is not used again.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := netnsOfThread()
		if err != nil {
			result <- err
			return // which ends the locked thread
		}
		defer before.Close()
		err = f()
		if back := netns.Set(before); back != nil {
			result <- errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}
