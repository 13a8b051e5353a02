// SPDX-License-Identifier: BSD-2-Clause

// Package experiments describes experiments as data, runs them and makes tables of the results.
//
// A [Plan] names experiments, shapers, rates and numbers of queues; [Plan.Run] goes through all
// combinations with the shapers interleaved, so that what changes on the machine meanwhile meets all
// of them, and hands out one [Row] for each run. [Table] condenses rows to medians and spreads.
//
// A run that goes wrong in any way gives a row with an error, never one with numbers.
package experiments
