// SPDX-License-Identifier: BSD-2-Clause

// Package meter measures what arrives at a device: a BPF program at its ingress counts the bytes of
// the frames by millisecond and by class of DSCPs, and [Series] answers questions about them.
//
// It counts at the receiver because a shaper's own counters say what it meant to do.
package meter
