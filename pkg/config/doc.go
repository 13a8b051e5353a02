// SPDX-License-Identifier: BSD-2-Clause

// Package config turns what a user asks for into a checked [Spec], and a Spec into the numbers that
// the controller works with. It asks the kernel nothing: the speed of the link is an argument.
//
// Every error is an [ErrInvalid] and names the field and what is wrong with it; callers add the
// command and the device.
package config
