// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/rates"
)

// The keys are a contract: scripts read them.
func TestStatusJSON(t *testing.T) {
	const want = `{
  "device": "eth0",
  "enforcing": true,
  "reason": "",
  "attach": "tcx",
  "bandwidth_bits_per_second": 200000000,
  "diffserv": "diffserv4",
  "split": "flows",
  "isolation": "",
  "flow_table_flows": 0,
  "root_qdisc": "mq",
  "framing": {
    "over_ip": true,
    "overhead_bytes": 34,
    "mpu_bytes": 0,
    "cells": "ptm"
  },
  "whole_gso": false,
  "classes": {
    "map": [
      "dscp:46=voice"
    ],
    "fwmark_mask": 255,
    "inner_dscp": false,
    "wash": true
  },
  "queues": {
    "total": 8,
    "active": 1,
    "counters": [
      {
        "sent_bytes": 1500,
        "sent_packets": 1
      }
    ]
  },
  "tins": [
    {
      "name": "best_effort",
      "rate_bits_per_second": 200000000,
      "ceil_bits_per_second": null,
      "active_queues": 0,
      "active_flows": 0,
      "sent_bytes": 0,
      "sent_packets": 0,
      "delayed_packets": 0,
      "ecn_marked_packets": 0,
      "dropped_packets": {
        "horizon": 1
      },
      "dropped_bytes": {
        "horizon": 1500
      },
      "sojourn_seconds": {
        "p50": 0.001,
        "p99": 0.01,
        "sum": 1,
        "buckets": [
          {
            "le": 0.001,
            "cumulative_packets": 1
          },
          {
            "le": "+Inf",
            "cumulative_packets": 2
          }
        ]
      },
      "queues": [
        {
          "queue": 3,
          "effective_rate_bits_per_second": 200000000,
          "active": true,
          "active_flows": 4
        }
      ]
    }
  ],
  "bypassed_packets": {
    "not_ip": 1
  },
  "queue_foresight": {
    "matched_packets": {
      "hash": 99
    },
    "mismatched_packets": {
      "xps": 1
    },
    "driver_chooses": false
  },
  "controller": {
    "events": 1,
    "recomputes": 0,
    "recomputes_by_trigger": {
      "active": 1
    },
    "rate_writes": 0,
    "unchanged_recomputes": 0,
    "events_lost": 0,
    "last_change": "2026-11-30T20:00:00.000000001Z",
    "state": "stopped",
    "unanswered_events": 3,
    "unanswered_seconds": 2.5,
    "stale": true
  },
  "drift": {
    "policy": "repair",
    "detected": 2,
    "repaired": 1,
    "last": "root: is pfifo 1:, want mq ca4e:",
    "last_detected": "2026-11-30T20:00:00.000000001Z",
    "next_repair": null,
    "notifications_lost": 0
  },
  "daemon_pid": 4711
}`
	text, err := json.MarshalIndent(exampleStatus(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRatesInJSON(t *testing.T) {
	for text, rate := range map[string]rates.Rate{
		"null": rates.Unlimited, "0": 0, "64000": 64 * rates.Kbit, "400000000000": 400 * rates.Gbit,
		"18446744073709551614": rates.Unlimited - 1,
	} {
		got, err := json.Marshal(BitsPerSec(rate))
		if err != nil || string(got) != text {
			t.Errorf("marshal %s: got %s, %v", rate, got, err)
		}
		var back BitsPerSec
		if err := json.Unmarshal([]byte(text), &back); err != nil || rates.Rate(back) != rate {
			t.Errorf("unmarshal %s: got %d, %v", text, back, err)
		}
	}
	for _, bad := range []string{`"1mbit"`, "-1", "1.5", "18446744073709551616"} {
		var b BitsPerSec
		if err := json.Unmarshal([]byte(bad), &b); err == nil {
			t.Errorf("unmarshal %s: got %d, want an error", bad, b)
		}
	}
}
