// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Which tin a packet belongs to. skb->priority is not asked: the kernel derives it from the TOS,
 * and whoever takes it for a tin takes a DSCP's upper bits for one.
 */
#ifndef CAKECTL_TIN_H
#define CAKECTL_TIN_H

#include "tunnel.h"

#define NO_TIN MAX_TINS

/* The tin that a mark names, or NO_TIN. */
__noinline __u32 tin_of_mark(__u32 mark)
{
	const __u32 *tin = bpf_map_lookup_elem(&mark_to_tin, &mark);
	__u32 number;

	if (tin)
		return *tin;
	number = (mark & config.fwmark_mask) >> (config.fwmark_shift & 31);
	if (!number || number > tin_count)
		return NO_TIN;
	return config.fwmark_to_tin[bounded(number - 1, MAX_TINS)];
}

/* The DSCP of what a tunnel carries, or of the packet itself if it is none. */
static __always_inline __u8 tin_inner_dscp(struct __sk_buff *skb, const struct frame *frame)
{
	struct frame inner = *frame;

	tunnel_enter(skb, &inner);
	return inner.dscp;
}

static __always_inline __u32 tin_of(struct __sk_buff *skb, const struct frame *frame)
{
	__u8 dscp = frame->dscp;

	if (config.by_mark && skb->mark) {
		__u32 tin = tin_of_mark(skb->mark);

		if (tin < tin_count)
			return tin;
	}
	if (config.inner_dscp)
		dscp = tin_inner_dscp(skb, frame);
	return config.dscp_to_tin[bounded(dscp, DSCP_VALUES)];
}

#endif
