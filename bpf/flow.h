// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The flows of a (queue, tin), and how many of them are active. */
#ifndef CAKECTL_FLOW_H
#define CAKECTL_FLOW_H

#include "maps.h"

static __always_inline bool flow_is_counted(const struct flow *flow, __u32 epoch)
{
	return (__s32)(flow->counted - epoch) >= 0;
}

/* Whether the flow could be forgotten without any of its packets leaving earlier for it. */
static __always_inline bool flow_is_at_rest(const struct flow *flow, __u64 now)
{
	return flow->departure_ns <= now && flow->guarantee_ns <= now;
}

/* The way of hash in its set: its own, else one of a flow at rest that does not count, else one of
 * a flow at rest, else one that it has to share. A way that changes hands starts with clean clocks.
 *
 * Ways are tried from one that the hash picks, so that a flow is usually found at the first.
 */
__noinline __u32 flow_find_way(__u32 key, __u32 hash, __u32 epoch, __u64 now)
{
	struct flow_set *set = bpf_map_lookup_elem(&flows, &key);
	__u32 tag = hash ?: 1;
	__u32 first = hash >> 24;
	__u32 best = 0, way = first;

	/* The caller has looked this key up before. */
	if (!set)
		return 0;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		struct flow *flow = &set->ways[bounded(first + i, FLOW_WAYS)];
		__u32 fitness;

		if (flow->tag == tag)
			return first + i;
		fitness = flow_is_at_rest(flow, now) ? 2 - flow_is_counted(flow, epoch) : 0;
		if (fitness > best) {
			best = fitness;
			way = first + i;
		}
	}
	if (!best)
		return first;

	struct flow *flow = &set->ways[bounded(way, FLOW_WAYS)];
	flow->tag = tag;
	flow->counted = epoch - 1;
	flow->guarantee_ns = 0;
	flow->departure_ns = 0;
	return way;
}

static __always_inline struct flow *flow_find(struct flow_set *set, __u32 key, __u32 hash,
					      __u32 epoch, __u64 now)
{
	struct flow *likely = &set->ways[bounded(hash >> 24, FLOW_WAYS)];

	if (likely->tag == (hash ?: 1))
		return likely;
	return &set->ways[bounded(flow_find_way(key, hash, epoch, now), FLOW_WAYS)];
}

/* Starts a new epoch when the old one is over. Only the CPU whose exchange succeeds does it; a flow
 * that another counts meanwhile may be lost, until its next epoch.
 */
static __always_inline void shard_roll(struct shard *shard, struct tin_clock *tin, __u64 now,
				       __u64 epoch_ns)
{
	__u64 start = shard->epoch_start_ns;
	__u32 epoch = shard->epoch;
	__u64 next = start + epoch_ns;
	__u32 flows, change;

	if ((__s64)(now - next) < 0)
		return;
	/* After a silence the epochs in between are passed too. */
	__u32 passed = 1;
	if (now - next >= epoch_ns) {
		passed = EPOCHS_AHEAD;
		next = now;
	}
	if (__sync_val_compare_and_swap(&shard->epoch_start_ns, start, next) != start)
		return;
	for (__u32 i = 0; i < EPOCHS_AHEAD; i++) {
		if (i < passed)
			shard->flows_of[bounded(epoch + i, EPOCHS_AHEAD)] = 0;
	}
	epoch += passed;
	shard->epoch = epoch;
	flows = shard->flows_of[bounded(epoch, EPOCHS_AHEAD)];
	change = flows - shard->flows;
	if (change) {
		__sync_fetch_and_add(&shard->flows, change);
		__sync_fetch_and_add(&tin->flows, change);
	}
}

/* Counts a flow in every epoch from this one to the one after that of its departure, as far as
 * there are counters.
 */
static __always_inline void shard_count(struct shard *shard, struct tin_clock *tin,
					struct flow *flow, __u64 departure, __u64 epoch_ns)
{
	__u32 epoch = shard->epoch;
	__u32 from = epoch, until = epoch + 1;
	__u64 end = shard->epoch_start_ns + epoch_ns;

	for (int i = 0; i < EPOCHS_AHEAD - 2; i++) {
		if (departure < end)
			break;
		end += epoch_ns;
		until++;
	}
	if (flow_is_counted(flow, epoch)) {
		from = flow->counted + 1;
	} else {
		__sync_fetch_and_add(&shard->flows, 1);
		__sync_fetch_and_add(&tin->flows, 1);
	}
	if ((__s32)(until - from) < 0)
		return;
	flow->counted = until;
	for (int i = 0; i < EPOCHS_AHEAD; i++) {
		__sync_fetch_and_add(&shard->flows_of[bounded(from, EPOCHS_AHEAD)], 1);
		if (from == until)
			break;
		from++;
	}
}

#endif
