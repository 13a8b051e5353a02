// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"errors"
	"net/http"

	"github.com/cakectl/cakectl/pkg/config"
)

var (
	// ErrNoDaemon is returned by the [Client] when nobody serves the device, and when the daemon
	// ended without an answer. What is asked for may be done without it then.
	ErrNoDaemon = errors.New("no daemon serves the device")
	// ErrServed is returned by [Listen] when a daemon serves the device already.
	ErrServed = errors.New("a daemon serves the device already")
)

// Kind says what an [Error] is about.
type Kind string

// The kinds of errors.
const (
	KindInvalid     Kind = "invalid"      // the user has to ask for something else
	KindNotAttached Kind = "not_attached" // the device is not attached, or not any more
	KindAwaited     Kind = "awaited"      // it is not attached, since there is no such device yet
	KindBusy        Kind = "busy"         // another process is changing the device
	KindElsewhere   Kind = "elsewhere"    // the daemon is one of another network namespace
	KindFailed      Kind = "failed"       // everything else: the kernel refused
)

// httpStatus is the status code that an error of this kind is answered with.
func (k Kind) httpStatus() int {
	switch k {
	case KindInvalid:
		return http.StatusBadRequest
	case KindNotAttached, KindAwaited:
		return http.StatusNotFound
	case KindBusy:
		return http.StatusConflict
	case KindElsewhere:
		return http.StatusMisdirectedRequest
	default:
		return http.StatusInternalServerError
	}
}

// Error is an error of the daemon, as it crosses the socket.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Is makes an Error of KindInvalid a [config.ErrInvalid].
func (e *Error) Is(target error) bool {
	return target == config.ErrInvalid && e.Kind == KindInvalid
}
