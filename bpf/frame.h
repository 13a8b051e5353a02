// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Finding the IP header of a frame, and its DSCP. */
#ifndef CAKECTL_FRAME_H
#define CAKECTL_FRAME_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <stddef.h>

#include "maps.h"

#define VLAN_HEADER_BYTES 4
#define VLAN_TAGS_MAX     2

#define DSCP_SHIFT 2

/* Where the IP header of a packet is, and what it says. */
struct frame {
	__u32 offset; /* from the start of the packet's data */
	__be16 protocol;
	__u8 dscp; /* 0 to 63 */
	__u8 pad;
};

static __always_inline bool frame_is_ip(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6);
}

static __always_inline bool frame_is_vlan(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

/* The DSCP from the first two bytes of an IP header, or -1 when the version there is not the
 * protocol's.
 */
static __always_inline int dscp_of(__be16 protocol, const __u8 head[2])
{
	if (protocol == bpf_htons(ETH_P_IP)) {
		if (head[0] >> 4 != 4)
			return -1;
		return head[1] >> DSCP_SHIFT;
	}
	if (head[0] >> 4 != 6)
		return -1;
	/* version 4 bits, traffic class 8 bits (DSCP 6, ECN 2), flow label 20 bits */
	return (head[0] & 0xf) << 2 | head[1] >> 6;
}

/* Moves from a layer-2 header's protocol, which ends at the offset, behind up to two VLAN tags. */
static __always_inline bool frame_skip_vlan(struct __sk_buff *skb, struct frame *frame)
{
	for (int tag = 0; tag < VLAN_TAGS_MAX; tag++) {
		if (!frame_is_vlan(frame->protocol))
			break;
		/* A tag is the TCI and then the protocol of what follows. */
		if (bpf_skb_load_bytes(skb, frame->offset + 2, &frame->protocol,
				       sizeof(frame->protocol)))
			return false;
		frame->offset += VLAN_HEADER_BYTES;
	}
	return true;
}

/* Finds the IP header of a packet, behind up to two VLAN tags in its data; with false, *reason says
 * why there is none.
 */
static __always_inline bool frame_find(struct __sk_buff *skb, struct frame *frame,
				       enum bypass_reason *reason)
{
	__u32 start = link_header_bytes;
	__u8 head[2];
	int dscp;

	frame->offset = start;
	frame->protocol = skb->protocol;
	*reason = BYPASS_MALFORMED;
	if (!frame_skip_vlan(skb, frame))
		return false;
	if (!frame_is_ip(frame->protocol)) {
		*reason = BYPASS_NOT_IP;
		return false;
	}

	void *data = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	if (frame->offset == start && data + start + sizeof(head) <= data_end) {
		__builtin_memcpy(head, data + start, sizeof(head));
	} else if (bpf_skb_load_bytes(skb, frame->offset, head, sizeof(head))) {
		return false;
	}
	dscp = dscp_of(frame->protocol, head);
	if (dscp < 0)
		return false;
	frame->dscp = dscp;
	return true;
}

/* Clears the DSCP of an IP header and keeps its ECN. Where the kernel finds no memory for a copy
 * that may be written, the packet stays as it is.
 */
__noinline int frame_wash(struct __sk_buff *skb, __u32 offset, __be16 protocol)
{
	union {
		__u8 bytes[2];
		__be16 word;
	} before, after;

	if (bpf_skb_load_bytes(skb, offset, &before, sizeof(before)))
		return 0;
	after = before;
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		after.bytes[0] &= 0xf0;
		after.bytes[1] &= 0x3f;
		return bpf_skb_store_bytes(skb, offset, &after, sizeof(after),
					   BPF_F_RECOMPUTE_CSUM);
	}
	after.bytes[1] &= (1 << DSCP_SHIFT) - 1;
	if (bpf_skb_store_bytes(skb, offset, &after, sizeof(after), 0))
		return 0;
	return bpf_l3_csum_replace(skb, offset + offsetof(struct iphdr, check), before.word,
				   after.word, sizeof(after));
}

#endif
