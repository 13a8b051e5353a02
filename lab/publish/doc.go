// SPDX-License-Identifier: BSD-2-Clause

// Package publish makes a report of the lab's results: one HTML page with everything in it, its pictures
// as files of their own, and a table for the README.
//
// Lines are told apart by dashes and markers as well as by colour.
package publish
