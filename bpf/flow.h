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
	__builtin_memset(&flow->aqm, 0, sizeof(flow->aqm));
	return way;
}

/* The way of hash in its set. */
static __always_inline __u32 flow_find(const struct flow_set *set, __u32 key, __u32 hash,
				       __u32 epoch, __u64 now)
{
	__u32 likely = hash >> 24;

	if (set->ways[bounded(likely, FLOW_WAYS)].tag == (hash ?: 1))
		return likely;
	return flow_find_way(key, hash, epoch, now);
}

/* Starts a new epoch when the old one is over. Only the CPU whose exchange succeeds does it; a flow
 * that another counts meanwhile may be lost, until its next epoch.
 */
__noinline int shard_start_epoch(__u32 cell, __u64 now, __u64 epoch_ns)
{
	__u32 zero = 0;
	struct device_state *state = bpf_map_lookup_elem(&device, &zero);
	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);

	/* The caller has looked them up before. */
	if (!state || !shard)
		return 0;

	struct tin_clock *tin = &state->tins[bounded(cell, MAX_TINS)];
	__u64 start = *(volatile __u64 *)&shard->epoch_start_ns;
	__u32 epoch = shard->epoch;

	/* Another CPU was first. */
	if ((__s64)(now - start) < (__s64)epoch_ns)
		return 0;

	__u64 passed = (now - start) / epoch_ns;
	__u64 next = start + passed * epoch_ns;

	/* After a long silence nothing counts any more, and the epochs may start anew. */
	if (passed >= EPOCHS_AHEAD) {
		passed = EPOCHS_AHEAD;
		next = now;
	}
	if (__sync_val_compare_and_swap(&shard->epoch_start_ns, start, next) != start)
		return 0;
	for (__u32 i = 0; i < EPOCHS_AHEAD; i++) {
		if (i < passed)
			shard->flows_of[bounded(epoch + i, EPOCHS_AHEAD)] = 0;
	}
	epoch += passed;
	shard->epoch = epoch;

	__u32 change = shard->flows_of[bounded(epoch, EPOCHS_AHEAD)] - shard->flows;
	if (change) {
		__sync_fetch_and_add(&shard->flows, change);
		__sync_fetch_and_add(&tin->flows, change);
		__sync_fetch_and_add(&state->flows, change);
	}
	return 0;
}

static __always_inline void shard_roll(const struct shard *shard, __u32 cell, __u64 now,
				       __u64 epoch_ns)
{
	if ((__s64)(now - shard->epoch_start_ns) >= (__s64)epoch_ns)
		shard_start_epoch(cell, now, epoch_ns);
}

/* Counts a flow in every epoch from this one to the one after that of its departure, as far as
 * there are counters. key: that of its set, times FLOW_WAYS, plus its way.
 */
__noinline int shard_count(__u32 cell, __u32 key, __u64 departure, __u64 epoch_ns)
{
	__u32 zero = 0, set_key = key / FLOW_WAYS;
	struct device_state *state = bpf_map_lookup_elem(&device, &zero);
	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);
	struct flow_set *set = bpf_map_lookup_elem(&flows, &set_key);

	/* The caller has looked them up before. */
	if (!state || !shard || !set)
		return 0;

	struct flow *flow = &set->ways[bounded(key, FLOW_WAYS)];
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
		__sync_fetch_and_add(&state->tins[bounded(cell, MAX_TINS)].flows, 1);
		__sync_fetch_and_add(&state->flows, 1);
	}
	if ((__s32)(until - from) < 0)
		return 0;
	flow->counted = until;
	for (int i = 0; i < EPOCHS_AHEAD; i++) {
		__sync_fetch_and_add(&shard->flows_of[bounded(from, EPOCHS_AHEAD)], 1);
		if (from == until)
			break;
		from++;
	}
	return 0;
}

#endif
