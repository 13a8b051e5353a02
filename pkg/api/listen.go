// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// socketMode lets the owner and the group of the socket connect.
const socketMode = 0o660

// maxSocketPath is the kernel's limit (sun_path without its final zero byte).
const maxSocketPath = 107

func socketPath(runDir, device string) string { return filepath.Join(runDir, device+".sock") }

// Listener is the claim of this process to be the daemon of a device. Clients that connect between
// [Listen] and [Listener.Serve] wait.
type Listener struct {
	device string
	path   string
	socket *net.UnixListener
	lock   *os.File
}

// Listen makes this process the daemon of a device, or returns [ErrServed] if another one is. A
// socket that a killed daemon left behind is replaced.
//
// What decides is a lock on a file beside the socket: the kernel drops it with the process that holds
// it, so that neither a stale socket nor two processes that find one at the same time do harm.
func Listen(runDir, device string) (*Listener, error) {
	path := socketPath(runDir, device)
	l, err := listen(runDir, path)
	if err != nil {
		return nil, fmt.Errorf("serve %s on %s: %w", device, path, err)
	}
	l.device = device
	return l, nil
}

func listen(runDir, path string) (*Listener, error) {
	if err := os.MkdirAll(runDir, 0o750); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	l := &Listener{path: path, lock: lock}
	if l.socket, err = bindSocket(path); err != nil {
		return nil, errors.Join(err, l.unlock())
	}
	return l, nil
}

// bindSocket makes the socket under another name first: nobody can connect before it has its
// permissions, and the rename replaces a stale one.
func bindSocket(path string) (*net.UnixListener, error) {
	aside := path + ".new"
	if len(aside) > maxSocketPath {
		return nil, fmt.Errorf("the path has %d bytes more than a socket's may have", len(aside)-maxSocketPath)
	}
	if err := removeIfThere(aside); err != nil {
		return nil, err
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: aside, Net: "unix"})
	if err != nil {
		return nil, err
	}
	socket.SetUnlinkOnClose(false)
	err = os.Chmod(aside, socketMode)
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close(), removeIfThere(aside))
	}
	return socket, nil
}

// lockFile makes and locks a file, or returns [ErrServed] if somebody holds the lock.
func lockFile(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, ErrServed
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		// The holder removes the file before it unlocks it: then what we hold is worth nothing.
		mine, err := file.Stat()
		if err != nil {
			file.Close()
			return nil, err
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(mine, there) {
			return file, nil
		}
		file.Close()
	}
}

func (l *Listener) unlock() error {
	return errors.Join(removeIfThere(l.lock.Name()), l.lock.Close())
}

// Close gives up the claim and removes the socket. It does not wait for requests that are being
// answered; [Listener.Serve] does.
func (l *Listener) Close() error {
	closed := l.socket.Close()
	if errors.Is(closed, net.ErrClosed) {
		closed = nil
	}
	return errors.Join(closed, removeIfThere(l.path), l.unlock())
}

// RemoveStale removes what a killed daemon of the device left behind. Where a daemon lives it does
// nothing.
func RemoveStale(runDir, device string) error {
	path := socketPath(runDir, device)
	for _, left := range []string{path, path + ".lock"} {
		if _, err := os.Lstat(left); err == nil {
			l, err := Listen(runDir, device)
			if errors.Is(err, ErrServed) {
				return nil
			}
			if err != nil {
				return err
			}
			return l.Close()
		}
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
