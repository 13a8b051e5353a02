// SPDX-License-Identifier: BSD-2-Clause

// Package doctor looks at what shaping depends on, and says what is wrong and what to do about it.
//
// [LookAtHost] and [LookAtDevice] ask the kernel and change nothing that lasts; what they saw is
// judged by pure functions, which is where the knowledge is.
package doctor
