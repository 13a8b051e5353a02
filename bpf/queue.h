// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Foreseeing the transmit queue.
 *
 * At egress the kernel has not chosen the queue yet. It will, in this order: the queue cached in
 * the socket (unless the packet may be reordered), what XPS allows this CPU, the queue_mapping that
 * the packet carries, its hash. The same order is followed here, with the same arithmetic; where
 * the last step would decide, the choice is written into queue_mapping so that it is the kernel's
 * too.
 *
 * A wrong guess costs nothing of the rates: the clocks do not depend on the queue that holds the
 * packet. It only books a flow under another queue's share.
 */
#ifndef CAKECTL_QUEUE_H
#define CAKECTL_QUEUE_H

#include "peek.h"

#define NO_QUEUE_MAPPING 0xffff

/* Maps a 32-bit hash to [0, count), as the kernel's reciprocal_scale does. */
static __always_inline __u32 scale_hash(__u32 hash, __u32 count)
{
	return (__u64)hash * count >> 32;
}

/* The queue cached in the packet's socket, or NO_QUEUE_MAPPING when the kernel will not use it. */
static __always_inline __u32 queue_of_socket(struct __sk_buff *ctx)
{
	if (!ctx->sk)
		return NO_QUEUE_MAPPING;

	if (has_kernel_ctx) {
		struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
		struct sock *sk = skb->sk;

		if (!sk || BPF_CORE_READ_BITFIELD(skb, ooo_okay))
			return NO_QUEUE_MAPPING;
		return sk->__sk_common.skc_tx_queue_mapping;
	}

	struct sk_buff *skb = address_of(ctx);
	if (!skb || BPF_CORE_READ_BITFIELD_PROBED(skb, ooo_okay))
		return NO_QUEUE_MAPPING;
	return BPF_CORE_READ(skb, sk, __sk_common.skc_tx_queue_mapping);
}

static __always_inline __u32 queue_foresee(struct __sk_buff *skb, __u32 hash, __u32 cpu,
					   enum queue_decision *by)
{
	__u32 queues = config.queues;
	__u32 queue = queue_of_socket(skb);
	__u32 mapping = skb->queue_mapping;

	*by = QUEUE_BY_SOCKET;
	if (queue < queues)
		return queue;

	/* Misses only on a CPU that was not possible at attach. */
	struct xps_entry *entry = bpf_map_lookup_elem(&xps, &cpu);
	if (entry && entry->count) {
		__u32 choice = entry->count == 1 ? 0 : scale_hash(hash, entry->count);

		queue = entry->queues[choice % XPS_CHOICES];
		*by = QUEUE_BY_XPS;
		if (queue < queues)
			return queue;
	}

	/* 1 + the queue that the packet came in by or that a program before us chose. */
	*by = QUEUE_BY_MAPPING;
	if (mapping)
		return queues ? (mapping - 1) % queues : 0;

	*by = QUEUE_BY_HASH;
	queue = scale_hash(hash, queues);
	skb->queue_mapping = queue + 1;
	return queue;
}

#endif
