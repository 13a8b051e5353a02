// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Fairness between hosts.
 *
 * Where a host, or a pair of hosts, is to be what is treated equally, it is the flow: its addresses
 * take the place of the flow's hash. Its packets go by several transmit queues then, so it has its
 * share under a queue of its own, which its hash picks (isolation_hash).
 *
 * Where a host's share is to be divided among its flows, flows stay what they are, but weigh less
 * the more of them their host has. For that a table counts the flows of each host, for both
 * directions apart, in the way that shards do, but by epochs eight times as long.
 */
#ifndef CAKECTL_HOST_H
#define CAKECTL_HOST_H

#include "clock.h"
#include "queue.h"
#include "tunnel.h"

#define IPV6_WORDS 4

static __always_inline bool isolates_source(enum isolation isolation)
{
	return isolation == ISOLATE_DUAL_SRCHOST || isolation == ISOLATE_TRIPLE;
}

static __always_inline bool isolates_destination(enum isolation isolation)
{
	return isolation == ISOLATE_DUAL_DSTHOST || isolation == ISOLATE_TRIPLE;
}

static __always_inline bool isolates_both_levels(enum isolation isolation)
{
	return isolation >= ISOLATE_DUAL_SRCHOST;
}

static __always_inline __u32 rotated(__u32 word, __u32 bits)
{
	return word << bits | word >> (32 - bits);
}

/* MurmurHash3 over the words of an address, with a seed that nobody outside knows. */
static __always_inline __u32 hash_words(const __u32 *words, __u32 count)
{
	__u32 hash = hash_seed;

	for (__u32 i = 0; i < IPV6_WORDS; i++) {
		if (i >= count)
			break;
		hash ^= rotated(words[i] * 0xcc9e2d51, 15) * 0x1b873593;
		hash = rotated(hash, 13) * 5 + 0xe6546b64;
	}
	hash ^= count;
	hash = (hash ^ hash >> 16) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

/* A host's epoch out of the device's. */
static __always_inline __u32 host_epoch(__u32 epoch)
{
	return epoch / HOST_EPOCH;
}

static __always_inline bool host_is_counted(const struct host *host, __u32 epoch)
{
	return host_epoch(host->counted) - host_epoch(epoch) < HOST_EPOCHS;
}

static __always_inline struct host *host_at(__u32 slot)
{
	__u32 key = slot / FLOW_WAYS;
	struct host_set *set = bpf_map_lookup_elem(&host_table, &key);

	return set ? &set->ways[bounded(slot, FLOW_WAYS)] : NULL;
}

/* The slot of a host that has its set among those from base on: its own, else one of a host without
 * active flows, else one that it has to share.
 */
__noinline __u32 host_find(__u32 base, __u32 hash, __u32 epoch)
{
	__u32 key = base + (hash & (HOST_SETS - 1));
	struct host_set *set = bpf_map_lookup_elem(&host_table, &key);
	__u32 first = hash >> 16, tag = hash ?: 1;
	__u32 free = FLOW_WAYS;

	/* The table has a set for every tin, direction and hash. */
	if (!set)
		return 0;
	for (__u32 i = 0; i < FLOW_WAYS; i++) {
		__u32 way = bounded(first + i, FLOW_WAYS);
		struct host *host = &set->ways[bounded(way, FLOW_WAYS)];

		if (host->tag == tag)
			return key * FLOW_WAYS + way;
		if (free == FLOW_WAYS && !host_is_counted(host, epoch))
			free = way;
	}
	if (free == FLOW_WAYS)
		return key * FLOW_WAYS + first % FLOW_WAYS;
	set->ways[bounded(free, FLOW_WAYS)].tag = tag;
	return key * FLOW_WAYS + free;
}

/* The active flows of a host, brought to the present epoch. */
__noinline __u32 host_flows(__u32 slot, __u32 epoch)
{
	struct host *host = host_at(slot);
	__u32 before, now = host_epoch(epoch);
	__s32 ended = 0;

	/* The slot is one that host_find found. */
	if (!host)
		return 0;
	before = *(volatile __u32 *)&host->epoch;
	if (before != now && __sync_val_compare_and_swap(&host->epoch, before, now) == before) {
		for (__u32 i = 0; i < HOST_EPOCHS; i++) {
			__s32 *flows = &host->ends[bounded(before + i, HOST_EPOCHS)];

			if (i >= now - before)
				break;
			if (*flows)
				ended += __sync_lock_test_and_set(flows, 0);
		}
		if (ended)
			__sync_fetch_and_add(&host->flows, -ended);
	}
	return flows_of(host->flows);
}

/* Reads the addresses of a packet and returns the hash of the host, or of the pair, that is treated
 * as one flow. Where it is the hosts' flows that are counted, finds these hosts, for hosts_weigh
 * and hosts_count, and returns 0. A function of its own, so that the verifier looks at it once.
 */
__noinline __u32 hosts_meet(struct __sk_buff *skb, struct frame *frame, __u32 tin)
{
	__u32 zero = 0, words[2 * IPV6_WORDS] = {};
	struct hosts_met *met = bpf_map_lookup_elem(&hosts_met, &zero);
	__u32 pair[2];

	/* An array of one entry always has it; a global function has to check its arguments. */
	if (!met || !frame)
		return 0;
	if (frame->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, frame->offset + offsetof(struct iphdr, saddr), words,
				       2 * sizeof(__u32)))
			return 0;
		pair[0] = hash_words(words, 1);
		pair[1] = hash_words(words + 1, 1);
	} else {
		if (bpf_skb_load_bytes(skb, frame->offset + offsetof(struct ipv6hdr, saddr), words,
				       sizeof(words)))
			return 0;
		pair[0] = hash_words(words, IPV6_WORDS);
		pair[1] = hash_words(words + IPV6_WORDS, IPV6_WORDS);
	}

	enum isolation isolation = config.isolation;
	if (isolation == ISOLATE_SRCHOST)
		return pair[0];
	if (isolation == ISOLATE_DSTHOST)
		return pair[1];
	if (isolation == ISOLATE_HOSTS)
		return hash_words(pair, 2);

	__u32 base = tin * 2 * HOST_SETS;
	__u32 flows = 0;
	if (isolates_source(isolation)) {
		met->source = host_find(base, pair[0], device.epoch);
		flows = host_flows(met->source, device.epoch);
	}
	if (isolates_destination(isolation)) {
		met->destination = host_find(base + HOST_SETS, pair[1], device.epoch);
		flows = later_ns(flows, host_flows(met->destination, device.epoch));
	}
	met->flows = flows;
	met->isolation = isolation;
	return 0;
}

/* What a flow of the hosts met weighs: FLOW_WEIGHT over the flows of the one that has more of them.
 * One that is not counted yet counts itself in.
 */
static __always_inline __u32 hosts_weigh(struct hosts_met *met, bool counted)
{
	__u32 flows = met->flows + !counted;
	__u32 weight = FLOW_WEIGHT / (flows ?: 1);

	return weight ?: 1;
}

/* Counts a flow of a host until an epoch, where it counted until another before, if it did. */
static __always_inline void host_count(__u32 slot, bool counted, __u32 before, __u32 until)
{
	struct host *host = host_at(slot);

	/* The slot is one that host_find found. */
	if (!host)
		return;
	if (!counted)
		__sync_fetch_and_add(&host->flows, 1);
	else if (host_epoch(before) == host_epoch(until))
		return;
	else
		__sync_fetch_and_add(&host->ends[bounded(host_epoch(before), HOST_EPOCHS)], -1);
	__sync_fetch_and_add(&host->ends[bounded(host_epoch(until), HOST_EPOCHS)], 1);
	if ((__s32)(until - host->counted) > 0 || !host_is_counted(host, until))
		host->counted = until;
}

/* Counts a flow of the hosts met. */
static __always_inline void hosts_count(const struct hosts_met *met, bool counted, __u32 before,
					__u32 until)
{
	if (isolates_source(met->isolation))
		host_count(met->source, counted, before, until);
	if (isolates_destination(met->isolation))
		host_count(met->destination, counted, before, until);
}

#endif
