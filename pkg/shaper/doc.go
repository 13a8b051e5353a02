// SPDX-License-Identifier: BSD-2-Clause

// Package shaper composes the parts of one shaped device: qdiscs, GSO limits, program, pins and
// controller.
//
// # State
//
// What outlives a process is in two places. The pins (Env.BPFFS/<device>) are the program and its
// maps. The record (Env.RunDir/<device>.json) says what was asked for, how the program is attached,
// and what the device looked like before: it is written before the device is touched and removed
// after the device is restored, so that whatever ends a process half way, the next attach or detach
// knows what to undo.
//
// # Attaching
//
// [Attach] is a list of steps, each of which does nothing where its work is done already. A first
// attach runs all of them, adopting a device that another process left runs the same ones. When one
// fails on a first attach, the device is torn down as [Shaper.Detach] does it.
package shaper
