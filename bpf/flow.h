// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The flows of a (queue, tin), and how many of them are active.
 *
 * A flow is looked up by its hash in two sets of FLOW_WAYS each: with half of the ways taken, one
 * set in twenty is full, and one pair of sets in some hundred.
 *
 * Flows are counted by epochs. A flow counts until its last packet has left, and for as long after
 * that as it has counted before, up to FLOW_HOLD_EPOCHS: one that lasts may pause, and thousands of
 * short ones a second count not much longer than they are there. A ring says how many flows cease
 * to count with each epoch to come; a flow that goes on moves to a later one.
 *
 * CPUs may come between each other here. All that is added to a count is in its ring too, and taken
 * out of it once, so whatever one of them makes wrong rights itself within a round of the ring.
 */
#ifndef CAKECTL_FLOW_H
#define CAKECTL_FLOW_H

#include "host.h"

static __always_inline bool flow_is_counted(const struct flow *flow, __u32 epoch)
{
	return flow->counted - epoch < EPOCHS;
}

/* Whether the flow could be forgotten without any of its packets leaving earlier for it. */
static __always_inline bool flow_is_at_rest(const struct flow *flow, __u64 now)
{
	return flow->departure_ns <= now && flow->guarantee_ns <= now;
}

/* The hash picks the queue by its highest bits, so these numbers come from others. */
static __always_inline __u32 flow_first_set(__u32 hash)
{
	return hash & (flow_sets - 1);
}

static __always_inline __u32 flow_second_set(__u32 hash)
{
	return hash >> 13 & (flow_sets - 1);
}

/* Flows that have been silent for so long are forgotten before others: two that pick the same way
 * and take turns would push each other out with every packet.
 */
#define FLOW_SILENT_NS (1ULL << 30)

/* Whether a flow may be forgotten for another, which is to come now, and how gladly: one that is
 * silent (or was never there), else one that does not count, else any at rest.
 */
static __always_inline __u32 flow_fitness(const struct flow *flow, __u32 epoch, __u64 now)
{
	if (!flow_is_at_rest(flow, now))
		return 0;
	if (flow_is_counted(flow, epoch))
		return 1;
	return now - flow->departure_ns < FLOW_SILENT_NS ? 2 : 3;
}

/* A flow counts once it has sent more than so many full packets without catching up with itself:
 * connections that are over after as many, as most are, shrink nobody's share.
 */
#define FLOW_COUNTS_PACKETS 4

/* Takes down bytes of a flow that is backlogged, or not, and says whether it is to count. */
static __always_inline bool flow_counts(struct flow *flow, __u32 epoch, bool backlogged,
					__u32 bytes, __u32 full_packet_bytes)
{
	__u32 enough = FLOW_COUNTS_PACKETS * full_packet_bytes;

	if (!backlogged)
		flow->waited_bytes = 0;
	if (flow->waited_bytes <= enough)
		flow->waited_bytes += bytes;
	return backlogged && (flow->waited_bytes > enough || flow_is_counted(flow, epoch));
}

/* Ways are tried from one that the hash picks, so that a flow is usually found at the first. */
static __always_inline __u32 flow_first_way(__u32 hash)
{
	return hash >> 16;
}

static __always_inline __u32 flow_tag(__u32 hash)
{
	return hash ?: 1;
}

/* The slot (its set's key, times FLOW_WAYS, plus its way) of a hash that has its sets from base on:
 * its own, else the one that is most fit to be taken, else one that it has to share. A slot that
 * changes hands starts with clean clocks.
 */
__noinline __u32 flow_find_slot(__u32 base, __u32 hash, __u32 epoch, __u64 now)
{
	__u32 first = (base + flow_first_set(hash)) * FLOW_WAYS + flow_first_way(hash) % FLOW_WAYS;
	__u32 best = 0, slot = first;

	for (int choice = 0; choice < 2; choice++) {
		__u32 key = base + (choice ? flow_second_set(hash) : flow_first_set(hash));
		struct flow_set *set = bpf_map_lookup_elem(&flows, &key);

		/* The caller has looked one of them up before. */
		if (!set)
			return first;
		for (__u32 i = 0; i < FLOW_WAYS; i++) {
			__u32 way = bounded(flow_first_way(hash) + i, FLOW_WAYS);
			struct flow *flow = &set->ways[bounded(way, FLOW_WAYS)];
			__u32 fitness;

			if (flow->tag == flow_tag(hash))
				return key * FLOW_WAYS + way;
			fitness = flow_fitness(flow, epoch, now);
			if (fitness > best) {
				best = fitness;
				slot = key * FLOW_WAYS + way;
			}
		}
	}
	if (!best)
		return first;

	__u32 key = slot / FLOW_WAYS;
	struct flow_set *set = bpf_map_lookup_elem(&flows, &key);
	if (!set)
		return first;
	struct flow *flow = &set->ways[bounded(slot, FLOW_WAYS)];
	flow->tag = flow_tag(hash);
	flow->counted = epoch - 1;
	flow->waited_bytes = 0;
	flow->guarantee_ns = 0;
	flow->departure_ns = 0;
	__builtin_memset(&flow->aqm, 0, sizeof(flow->aqm));
	return slot;
}

/* The flow of a hash that has its sets from base on, and its slot. */
static __always_inline struct flow *flow_find(__u32 base, __u32 hash, __u32 epoch, __u64 now,
					      __u32 *slot)
{
	__u32 way = flow_first_way(hash);
	__u32 key = base + flow_first_set(hash);
	struct flow_set *set = bpf_map_lookup_elem(&flows, &key);

	/* Misses only when the device grew queues and the maps have not followed yet. */
	if (!set)
		return NULL;
	*slot = key * FLOW_WAYS + way % FLOW_WAYS;
	struct flow *flow = &set->ways[bounded(way, FLOW_WAYS)];
	if (flow->tag == flow_tag(hash))
		return flow;
	*slot = flow_find_slot(base, hash, epoch, now);
	key = *slot / FLOW_WAYS;
	set = bpf_map_lookup_elem(&flows, &key);
	if (!set)
		return NULL;
	return &set->ways[bounded(*slot, FLOW_WAYS)];
}

/* Brings the epoch up to now. Only the CPU whose exchange succeeds does it. In a silence of a whole
 * round everything ceases to count, so it is as good as any longer one.
 */
static __always_inline void epoch_roll(__u64 now, __u64 epoch_ns)
{
	__u64 start = *(volatile __u64 *)&device.epoch_start_ns;
	__u64 passed;

	if ((__s64)(now - start) < (__s64)epoch_ns)
		return;
	passed = (now - start) / epoch_ns;
	if (__sync_val_compare_and_swap(&device.epoch_start_ns, start, start + passed * epoch_ns) ==
	    start)
		__sync_fetch_and_add(&device.epoch, earlier_ns(passed, EPOCHS));
}

/* Adds to the count of active flows on every level. */
static __always_inline void shard_add(struct shard *shard, __u32 tin, __s32 flows)
{
	__sync_fetch_and_add(&shard->flows, flows);
	__sync_fetch_and_add(&device.tins[bounded(tin, MAX_TINS)].flows, flows);
	__sync_fetch_and_add(&device.flows, flows);
}

/* Brings a shard to the present epoch. Only the CPU whose exchange succeeds does it. */
__noinline int shard_start_epoch(__u32 cell)
{
	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);
	struct shard_ends *ends = bpf_map_lookup_elem(&shard_ends, &cell);

	/* The caller has looked them up before. */
	if (!shard || !ends)
		return 0;

	/* In this order, so that the latter is no earlier. */
	__u32 before = *(volatile __u32 *)&shard->epoch;
	__u32 epoch = *(volatile __u32 *)&device.epoch;
	__s32 ended = 0, lighter = 0;

	if (__sync_val_compare_and_swap(&shard->epoch, before, epoch) != before)
		return 0;
	for (__u32 i = 0; i < EPOCHS; i++) {
		__u32 last = bounded(before + i, EPOCHS);
		__s32 *flows = &ends->flows[bounded(last, EPOCHS)];
		__s32 *weight = &ends->weight[bounded(last, EPOCHS)];

		if (i >= epoch - before)
			break;
		if (*flows)
			ended += __sync_lock_test_and_set(flows, 0);
		if (*weight)
			lighter += __sync_lock_test_and_set(weight, 0);
	}
	if (ended)
		shard_add(shard, cell % MAX_TINS, -ended);
	if (lighter)
		__sync_fetch_and_add(&device.tins[bounded(cell, MAX_TINS)].weight, -lighter);
	return 0;
}

static __always_inline void shard_roll(const struct shard *shard, __u32 cell)
{
	if (device.epoch != shard->epoch)
		shard_start_epoch(cell);
}

/* Counts a flow from this epoch to some time after its departure: see the top. */
__noinline int shard_count(__u32 cell, __u32 slot, __u64 departure, __u64 epoch_ns,
			   enum isolation isolation)
{
	__u32 zero = 0, key = slot / FLOW_WAYS;
	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);
	struct shard_ends *ends = bpf_map_lookup_elem(&shard_ends, &cell);
	struct flow_set *set = bpf_map_lookup_elem(&flows, &key);
	struct hosts_met *met = NULL;

	/* The caller has looked them up before. */
	if (!shard || !ends || !set)
		return 0;
	if (isolates_both_levels(isolation))
		met = bpf_map_lookup_elem(&hosts_met, &zero);

	struct flow *flow = &set->ways[bounded(slot, FLOW_WAYS)];
	struct tin_clock *tin = &device.tins[bounded(cell, MAX_TINS)];
	__u32 epoch = shard->epoch;
	__u32 before = flow->counted;
	__u64 start = device.epoch_start_ns;
	__u64 until = departure > start ? (departure - start) / epoch_ns : 0;
	bool counted = flow_is_counted(flow, epoch);
	__u32 weighed = counted ? flow->weight : 0;
	__u32 weight = met ? hosts_weigh(met, counted) : 0;

	if (counted) {
		__u16 age = epoch - flow->counted_since;

		until += age < FLOW_HOLD_EPOCHS ? age : FLOW_HOLD_EPOCHS;
		until = epoch + earlier_ns(until, EPOCHS - 1);
		if ((__s32)((__u32)until - before) <= 0) {
			if (weight == weighed)
				return 0;
			until = before;
		}
		__sync_fetch_and_add(&ends->flows[bounded(before, EPOCHS)], -1);
		if (weighed)
			__sync_fetch_and_add(&ends->weight[bounded(before, EPOCHS)], -weighed);
	} else {
		until = epoch + earlier_ns(until, EPOCHS - 1);
		flow->counted_since = epoch;
		shard_add(shard, cell % MAX_TINS, 1);
	}
	__sync_fetch_and_add(&ends->flows[bounded(until, EPOCHS)], 1);
	if (met) {
		__sync_fetch_and_add(&ends->weight[bounded(until, EPOCHS)], weight);
		hosts_count(met, counted, before, until);
	}
	if (weight != weighed)
		__sync_fetch_and_add(&tin->weight, weight - weighed);
	flow->weight = weight;
	flow->counted = until;
	return 0;
}

#endif
