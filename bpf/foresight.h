// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Was the transmit queue foreseen right?
 *
 * While a check is on (device_config.check_queues_until_ns) the egress program notes what it
 * foresaw of the packet at hand, and a second program (check.bpf.c) at the net_dev_queue
 * tracepoint, where the kernel has chosen, compares. Nothing that is in the packet survives from
 * here to there, but between the two the CPU sends no other packet, unless a later filter redirects
 * this one. So there is one note for each CPU, and it is good for the packet whose address it has.
 */
#ifndef CAKECTL_FORESIGHT_H
#define CAKECTL_FORESIGHT_H

#include "kernel.h"
#include "types.h"

/* Key 0. Value: what was foreseen of the latest packet on this CPU. Written by the data path, and
 * cleared by the check. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct foreseen);
} foreseen SEC(".maps");

/* Key 0. Value: packets that went where they were foreseen to, and others, on this CPU. Written by
 * the check only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct foresight_counters);
} foresight SEC(".maps");

static __always_inline void foresight_note(struct __sk_buff *skb, __u32 queue,
					   enum queue_decision by)
{
	__u32 zero = 0;
	struct foreseen *note = bpf_map_lookup_elem(&foreseen, &zero);

	/* An array of one entry always has it. */
	if (!note)
		return;
	note->skb_address = (__u64)skb;
	note->queue = queue;
	note->by = by;
}

#endif
