// SPDX-License-Identifier: BSD-2-Clause

// Package deploy holds what runs cakectl for good: a systemd unit, a Kubernetes manifest, alerts and a
// dashboard. Its tests hold them against the program.
package deploy
