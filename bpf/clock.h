// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Virtual clocks: what a packet costs, and when it may leave. Pure functions; time is an argument.
 *
 * Times are CLOCK_MONOTONIC nanoseconds, which sch_fq compares packets against.
 */
#ifndef CAKECTL_CLOCK_H
#define CAKECTL_CLOCK_H

#include "maps.h"

#define RATE_FRACTION_BITS 24

/* Nanoseconds that length bytes take. The rate's slowest value is 2^43.9 (8 kbit/s) and a packet is
 * below 2^20 bytes, so the product fits 64 bits.
 */
static __always_inline __u64 cost_ns(__u32 length, __u64 ns_per_byte_q24)
{
	return length * ns_per_byte_q24 >> RATE_FRACTION_BITS;
}

static __always_inline __u64 later_ns(__u64 a, __u64 b)
{
	return a > b ? a : b;
}

static __always_inline __u64 earlier_ns(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

#define PARTS_BITS  16
#define PARTS_MAX   (1ULL << 30)
#define COST_NS_MAX (1ULL << 33)

/* A flow's cost out of the cost at the rate that some of the flows of a tin have together: by what
 * the flow weighs among all of the tin's. The bounds keep the product below 2^63; what is beyond
 * them (8 seconds, 16,384 such flows) is beyond any horizon.
 */
static __always_inline __u64 weighed_ns(__u64 cost, __u64 flows, __u64 tin_flows, __u64 tin_weight,
					__u64 weight)
{
	__u64 parts = (later_ns(tin_weight, weight) << PARTS_BITS) / weight;

	parts = later_ns(parts * flows / tin_flows, 1);
	return earlier_ns(cost, COST_NS_MAX) * earlier_ns(parts, PARTS_MAX) >> PARTS_BITS;
}

/* Advances a clock that CPUs share by cost and returns where this packet's time begins. A clock
 * that stands in the past is first brought to now: idle time earns no credit.
 */
static __always_inline __u64 clock_take(__u64 *clock, __u64 now, __u64 cost)
{
	__u64 at = *(volatile __u64 *)clock;

	if (at < now && __sync_val_compare_and_swap(clock, at, now + cost) == at)
		return now;
	return later_ns(__sync_fetch_and_add(clock, cost), now);
}

#endif
