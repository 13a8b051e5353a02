// SPDX-License-Identifier: BSD-2-Clause

// Package sdnotify tells systemd how a service of Type=notify or notify-reload is doing (sd_notify(3)).
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// State is what can be told.
type State string

// The states.
const (
	Ready     State = "READY=1"
	Reloading State = "RELOADING=1"
	Stopping  State = "STOPPING=1"
)

// Notify tells systemd. It does nothing where the process is no such service.
func Notify(state State) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	message := string(state)
	if state == Reloading { // systemd pairs it with the Ready that follows
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		message += fmt.Sprintf("\nMONOTONIC_USEC=%d", now.Nano()/1000)
	}
	// A name that begins with @ is an abstract one, for net as for systemd.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	_, err = conn.Write([]byte(message))
	if err := errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	return nil
}
