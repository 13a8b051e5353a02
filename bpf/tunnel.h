// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Looking into tunnels: IPIP, SIT, IPv6 in IPv6, GRE, VXLAN and GENEVE. One level is opened; what
 * is encrypted, or tunnelled otherwise, stays closed.
 */
#ifndef CAKECTL_TUNNEL_H
#define CAKECTL_TUNNEL_H

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "frame.h"

#define FRAGMENT_OFFSET_MASK 0x1fff

#define GRE_CHECKSUM     0x8000
#define GRE_KEY          0x2000
#define GRE_SEQUENCE     0x1000
#define GRE_VERSION_MASK 0x0007

#define VXLAN_PORT          4789
#define VXLAN_PORT_LINUX    8472 /* Linux's default, from before a port was assigned */
#define VXLAN_HEADER_BYTES  8
#define GENEVE_PORT         6081
#define GENEVE_HEADER_BYTES 8
#define GENEVE_OPTIONS_MASK 0x3f

/* The header behind an IP header. */
struct ip_payload {
	__u32 offset;
	__u8 protocol; /* IPPROTO_ */
};

/* Finds what an IP header carries. A fragment but the first has no further header. */
static __always_inline bool tunnel_ip_payload(struct __sk_buff *skb, const struct frame *frame,
					      struct ip_payload *payload)
{
	if (frame->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, frame->offset, &ip, sizeof(ip)) ||
		    ip.frag_off & bpf_htons(FRAGMENT_OFFSET_MASK))
			return false;
		payload->offset = frame->offset + ip.ihl * 4;
		payload->protocol = ip.protocol;
		return true;
	}

	struct ipv6hdr ip6;
	if (bpf_skb_load_bytes(skb, frame->offset, &ip6, sizeof(ip6)))
		return false;
	payload->offset = frame->offset + sizeof(ip6);
	payload->protocol = ip6.nexthdr;
	/* Linux's IPv6 tunnels put an encapsulation limit there, unless told not to. */
	if (payload->protocol == IPPROTO_DSTOPTS) {
		struct ipv6_opt_hdr options;

		if (bpf_skb_load_bytes(skb, payload->offset, &options, sizeof(options)))
			return false;
		payload->offset += (options.hdrlen + 1) * 8;
		payload->protocol = options.nexthdr;
	}
	return true;
}

/* Moves the frame behind an Ethernet header that a tunnel carries. */
static __always_inline bool tunnel_ethernet(struct __sk_buff *skb, struct frame *frame)
{
	if (bpf_skb_load_bytes(skb, frame->offset + ETH_HLEN - sizeof(frame->protocol),
			       &frame->protocol, sizeof(frame->protocol)))
		return false;
	frame->offset += ETH_HLEN;
	return frame_skip_vlan(skb, frame);
}

static __always_inline bool tunnel_gre(struct __sk_buff *skb, struct frame *frame)
{
	struct {
		__be16 flags;
		__be16 protocol;
	} gre;

	if (bpf_skb_load_bytes(skb, frame->offset, &gre, sizeof(gre)) ||
	    gre.flags & bpf_htons(GRE_VERSION_MASK))
		return false;
	frame->offset += sizeof(gre);
	if (gre.flags & bpf_htons(GRE_CHECKSUM))
		frame->offset += 4;
	if (gre.flags & bpf_htons(GRE_KEY))
		frame->offset += 4;
	if (gre.flags & bpf_htons(GRE_SEQUENCE))
		frame->offset += 4;
	frame->protocol = gre.protocol;
	return gre.protocol != bpf_htons(ETH_P_TEB) || tunnel_ethernet(skb, frame);
}

static __always_inline bool tunnel_udp(struct __sk_buff *skb, struct frame *frame)
{
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, frame->offset, &udp, sizeof(udp)))
		return false;
	frame->offset += sizeof(udp);
	if (udp.dest == bpf_htons(VXLAN_PORT) || udp.dest == bpf_htons(VXLAN_PORT_LINUX)) {
		frame->offset += VXLAN_HEADER_BYTES;
		return tunnel_ethernet(skb, frame);
	}
	if (udp.dest == bpf_htons(GENEVE_PORT)) {
		struct {
			__u8 options; /* length in words of 4 bytes */
			__u8 flags;
			__be16 protocol;
		} geneve;

		if (bpf_skb_load_bytes(skb, frame->offset, &geneve, sizeof(geneve)))
			return false;
		frame->offset += GENEVE_HEADER_BYTES + (geneve.options & GENEVE_OPTIONS_MASK) * 4;
		frame->protocol = geneve.protocol;
		return geneve.protocol != bpf_htons(ETH_P_TEB) || tunnel_ethernet(skb, frame);
	}
	return false;
}

/* Moves from the IP header of a tunnel to that of what it carries. Returns 0, with the frame as it
 * was, where there is no such thing. A function of its own, so that the verifier looks at it once.
 */
__noinline int tunnel_enter(struct __sk_buff *skb, struct frame *frame)
{
	struct ip_payload payload;
	struct frame inner = {};
	__u8 head[2];
	bool found;
	int dscp;

	if (!frame || !tunnel_ip_payload(skb, frame, &payload))
		return 0;
	inner.offset = payload.offset;
	switch (payload.protocol) {
	case IPPROTO_IPIP:
		inner.protocol = bpf_htons(ETH_P_IP);
		found = true;
		break;
	case IPPROTO_IPV6:
		inner.protocol = bpf_htons(ETH_P_IPV6);
		found = true;
		break;
	case IPPROTO_GRE:
		found = tunnel_gre(skb, &inner);
		break;
	case IPPROTO_UDP:
		found = tunnel_udp(skb, &inner);
		break;
	default:
		found = false;
	}
	if (!found || !frame_is_ip(inner.protocol) ||
	    bpf_skb_load_bytes(skb, inner.offset, head, sizeof(head)))
		return 0;
	dscp = dscp_of(inner.protocol, head);
	if (dscp < 0)
		return 0;
	inner.dscp = dscp;
	*frame = inner;
	return 1;
}

#endif
