// SPDX-License-Identifier: BSD-2-Clause

// Package control keeps the effective rates of one device in step with what is active on it.
//
// The data path says when a (queue, tin) turns active or idle, or when its number of flows changes
// by a step. The [Controller] then asks which are active, plans their rates (package rates), and
// writes those that differ from what the kernel has. Between events it sleeps: there is no polling,
// and a steady state costs nothing.
//
// A late or dead controller is harmless: the data path holds the total by its aggregate clock, and
// gives a queue that is not in the plan a share of its own reckoning.
package control
