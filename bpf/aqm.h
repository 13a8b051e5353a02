// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Queue management: CoDel (RFC 8289) for each flow, told at enqueue.
 *
 * CoDel needs a packet's sojourn when it leaves. Here that is known when the packet comes: it is
 * the departure just found for it. So the signal is given to the packet that arrives, and its
 * sender hears of it a sojourn earlier than it would from a queue that looks when a packet leaves.
 */
#ifndef CAKECTL_AQM_H
#define CAKECTL_AQM_H

#include "clock.h"

enum aqm_phase {
	/* The latest sojourn was below the target. */
	AQM_BELOW,
	/* Above it, not yet for an interval. */
	AQM_ABOVE,
	/* Above it for an interval and more: signals, ever closer to each other. */
	AQM_SIGNALLING,
};

/* A flow that comes back to signalling within so many intervals goes on where it was. */
#define AQM_MEMORY_INTERVALS 16

#define AQM_ROOT_BITS 16

/* Newton steps from the root of a count to that of the next: the largest, from 1 to 2, takes four
 * to be right to a thousandth.
 */
#define AQM_ROOT_STEPS 4

/* 1/sqrt(count), Q16, from the root of a count one less or of a higher one. */
static __always_inline __u16 aqm_root(__u16 root_q16, __u32 count)
{
	__u64 root = root_q16;

	for (int i = 0; i < AQM_ROOT_STEPS; i++) {
		__u64 factor_q32 = (3ULL << 32) - count * (root * root);

		/* Half of root * factor, rid first of the bits that it has no room for. */
		root = (factor_q32 >> 2) * root >> (30 + 1);
		if (root > 0xffff)
			root = 0xffff;
	}
	return root;
}

/* Whether the packet that arrives now, and will wait for so long, is to carry a signal. */
static __always_inline bool aqm_signals(struct aqm *aqm, __u64 now, __u64 sojourn_ns,
					__u64 target_ns, __u64 interval_ns)
{
	__s64 since = now - aqm->next_ns;

	if (sojourn_ns <= target_ns) {
		if (aqm->phase == AQM_SIGNALLING)
			aqm->next_ns = now;
		aqm->phase = AQM_BELOW;
		return false;
	}
	if (aqm->phase == AQM_BELOW) {
		if (since > (__s64)(AQM_MEMORY_INTERVALS * interval_ns))
			aqm->count = 0;
		aqm->phase = AQM_ABOVE;
		aqm->next_ns = now + interval_ns;
		return false;
	}
	if (since < 0)
		return false;
	if (aqm->phase == AQM_ABOVE) {
		aqm->phase = AQM_SIGNALLING;
		aqm->count = aqm->count > 2 ? aqm->count - 2 : 1;
		if (aqm->count == 1)
			aqm->root_q16 = 0xffff;
		aqm->next_ns = now;
	} else if (aqm->count < 0xffff) {
		aqm->count++;
	}
	aqm->root_q16 = aqm_root(aqm->root_q16, aqm->count);
	/* An interval is at most 1,000 s, 2^40 ns. */
	aqm->next_ns += interval_ns * aqm->root_q16 >> AQM_ROOT_BITS;
	return true;
}

#endif
