// SPDX-License-Identifier: BSD-2-Clause

// Package framing says what a packet takes on the line behind a device: a modem adds headers, may
// pad short packets, and may cut the whole into cells. Formula, keywords and numbers are those of
// sch_cake and tc-cake(8). Nothing here touches the kernel; bpf/framing.h computes the same for each
// packet.
package framing
