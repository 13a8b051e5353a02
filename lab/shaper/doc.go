// SPDX-License-Identifier: BSD-2-Clause

// Package shaper puts the shapers that experiments compare onto a device: those of the kernel by the
// commands that people use, and cakectl.
package shaper
