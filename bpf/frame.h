// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Finding the DSCP of a frame. */
#ifndef CAKECTL_FRAME_H
#define CAKECTL_FRAME_H

#include <linux/if_ether.h>

#include "maps.h"

#define VLAN_HEADER_BYTES 4
#define VLAN_TAGS_MAX     2

#define DSCP_SHIFT 2

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

/* The DSCP (0 to 63) of a packet, behind up to two VLAN tags in its data; with *ok false, the
 * bypass_reason.
 */
static __always_inline int frame_dscp(struct __sk_buff *skb, bool *ok)
{
	__be16 protocol = skb->protocol;
	__u32 offset = link_header_bytes;
	__u8 head[2];
	int dscp;

	*ok = false;
	for (int tag = 0; tag < VLAN_TAGS_MAX; tag++) {
		if (!frame_is_vlan(protocol))
			break;
		/* A tag is the TCI and then the protocol of what follows. */
		if (bpf_skb_load_bytes(skb, offset + 2, &protocol, sizeof(protocol)))
			return BYPASS_MALFORMED;
		offset += VLAN_HEADER_BYTES;
	}
	if (protocol != bpf_htons(ETH_P_IP) && protocol != bpf_htons(ETH_P_IPV6))
		return BYPASS_NOT_IP;

	void *data = (void *)(long)skb->data;
	void *data_end = (void *)(long)skb->data_end;
	if (offset == link_header_bytes && data + link_header_bytes + sizeof(head) <= data_end) {
		__builtin_memcpy(head, data + link_header_bytes, sizeof(head));
	} else if (bpf_skb_load_bytes(skb, offset, head, sizeof(head))) {
		return BYPASS_MALFORMED;
	}
	dscp = dscp_of(protocol, head);
	if (dscp < 0)
		return BYPASS_MALFORMED;
	*ok = true;
	return dscp;
}

#endif
