// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The flows of a (queue, tin), and how many of them are active. */
#ifndef CAKECTL_FLOW_H
#define CAKECTL_FLOW_H

#include "maps.h"

/* Two epochs without a packet and a flow is forgotten. */
static __always_inline bool flow_is_active(const struct flow *flow, __u32 epoch)
{
	return flow->tag && epoch - flow->epoch <= 1;
}

/* The way of hash in its set: its own, else one whose flow is not active, else one that it has to
 * share. A way that changes hands starts with clean clocks.
 *
 * Ways are tried from one that the hash picks, so that a flow is usually found at the first.
 */
__noinline __u32 flow_find_way(__u32 key, __u32 hash, __u32 epoch)
{
	struct flow_set *set = bpf_map_lookup_elem(&flows, &key);
	__u32 tag = hash ?: 1;
	__u32 first = hash >> 24;
	struct flow *victim = NULL;
	__u32 way = first;

	/* The caller has looked this key up before. */
	if (!set)
		return 0;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		struct flow *flow = &set->ways[bounded(first + i, FLOW_WAYS)];

		if (flow->tag == tag)
			return first + i;
		if (!victim && !flow_is_active(flow, epoch)) {
			victim = flow;
			way = first + i;
		}
	}
	if (!victim)
		return first;
	victim->tag = tag;
	victim->epoch = epoch - 2;
	victim->guarantee_ns = 0;
	victim->departure_ns = 0;
	return way;
}

static __always_inline struct flow *flow_find(struct flow_set *set, __u32 key, __u32 hash,
					      __u32 epoch)
{
	struct flow *likely = &set->ways[bounded(hash >> 24, FLOW_WAYS)];

	if (likely->tag == (hash ?: 1))
		return likely;
	return &set->ways[bounded(flow_find_way(key, hash, epoch), FLOW_WAYS)];
}

/* Starts a new epoch when the old one is over. Only the CPU whose exchange succeeds does it; a
 * count that another adds meanwhile may be lost, and comes back with that flow's next packet in the
 * new epoch.
 */
static __always_inline void shard_roll(struct shard *shard, struct tin_clock *tin, __u64 now,
				       __u64 epoch_ns)
{
	__u64 start = shard->epoch_start_ns;
	__u32 seen, flows;

	if ((__s64)(now - start) < (__s64)epoch_ns)
		return;
	if (__sync_val_compare_and_swap(&shard->epoch_start_ns, start, now) != start)
		return;
	/* Flows seen before a silence of an epoch and more do not count as of the last one. */
	bool silent = now - start >= 2 * epoch_ns;
	seen = silent ? 0 : shard->flows_seen;
	flows = shard->flows;
	shard->flows_seen = 0;
	shard->epoch += silent ? 2 : 1;
	if (seen != flows) {
		__sync_fetch_and_add(&shard->flows, seen - flows);
		__sync_fetch_and_add(&tin->flows, seen - flows);
	}
}

/* Counts a flow from its first packet of the epoch. */
static __always_inline void shard_count(struct shard *shard, struct tin_clock *tin,
					struct flow *flow)
{
	__u32 epoch = shard->epoch;
	__u32 age = epoch - flow->epoch;

	if (!age)
		return;
	flow->epoch = epoch;
	__sync_fetch_and_add(&shard->flows_seen, 1);
	if (age > 1) {
		__sync_fetch_and_add(&shard->flows, 1);
		__sync_fetch_and_add(&tin->flows, 1);
	}
}

#endif
