// SPDX-License-Identifier: BSD-2-Clause

// Package metrics shows the state of the attached devices to Prometheus.
//
// Nothing is kept here that the kernel knows: the [Collector] asks its [Source] at each scrape and
// makes every series from the answer. Only what no map holds, such as how fast the controller reacts,
// is counted in the process. docs/METRICS.md lists all metrics; a test writes it from their
// definitions.
package metrics
