// SPDX-License-Identifier: BSD-2-Clause

// Package api is how a cakectl process talks to another: HTTP and JSON over a unix socket in the run
// directory, one socket a device. [Status] is also what `cakectl status -o json` prints.
//
//	GET   /v1/status   the Status
//	PATCH /v1/config   takes a config.Change, answers with a Changed
//	POST  /v1/detach   restores the device and ends the daemon
//
// The daemon of many devices has one socket more, for what concerns all of them:
//
//	GET  /v1/devices   the names of those it serves
//	POST /v1/devices   takes the config.Spec of one more, answers with an Outcome
//	PUT  /v1/devices   takes the Specs of a file, answers with an Outcome each
//
// Who may connect is decided by the socket's permissions (0660). An error is answered as an [Error]
// in JSON, which the [Client] returns.
package api
