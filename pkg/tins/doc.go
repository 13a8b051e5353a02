// SPDX-License-Identifier: BSD-2-Clause

// Package tins holds CAKE's presets: which tin each DSCP belongs to, and the threshold of each tin.
// Tables, names and thresholds are those of sch_cake in Linux 7.3; nothing here touches the kernel.
//
// A tin is known by its index, CAKE's internal one: while a tin is within its threshold, a
// higher index goes first.
package tins
