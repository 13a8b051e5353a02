// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The check of queue foresight: compares where the kernel sends a packet with where the egress
 * program foresaw it to go (foresight.h). It is attached while somebody wants to know, and gets the
 * maps of the device that is asked about. The tracepoint is that of all devices: packets of others
 * have no note.
 */
#include "foresight.h"

#include <bpf/bpf_tracing.h>

SEC("tp_btf/net_dev_queue")
int BPF_PROG(cakectl_check, struct sk_buff *skb)
{
	__u32 zero = 0;
	struct foreseen *note = bpf_map_lookup_elem(&foreseen, &zero);
	struct foresight_counters *count = bpf_map_lookup_elem(&foresight, &zero);

	/* Arrays of one entry always have it. */
	if (!note || !count || note->skb_address != (__u64)skb)
		return 0;
	note->skb_address = 0;

	__u32 by = note->by % QUEUE_DECISIONS;
	if (skb->queue_mapping == note->queue)
		count->matched[by]++;
	else
		count->mismatched[by]++;
	if (skb->dev->netdev_ops->ndo_select_queue)
		count->driver_chooses = 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
