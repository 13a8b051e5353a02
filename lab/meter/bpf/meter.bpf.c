// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Counts what arrives at a device, by millisecond and class.
 *
 * It hangs at the receiver's ingress and passes every packet on. Bytes are those of the frames as a
 * wire would carry them: a super-packet of N segments counts its headers N times. skb->wire_len
 * does not say that at ingress (it is the length without the link header, and headers count once).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <stddef.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define CLASSES     8
#define SLOTS       65536 /* one a millisecond */
#define DSCPS       64
#define NS_PER_SLOT 1000000ull
#define DOFF_OFFSET 12 /* of the byte that holds the length of a TCP header, in its high half */

struct slot {
	__u64 bytes[CLASSES];
};

/* Key: milliseconds since start_ns. Value: bytes that arrived in that millisecond. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

volatile const __u64 start_ns; /* CLOCK_MONOTONIC */
volatile const __u8 class_of_dscp[DSCPS];

/* Outside the map's time, so not in any slot. */
__u64 missed_bytes;

static __always_inline __u32 transport_header_bytes(struct __sk_buff *skb, __u8 protocol,
						    __u32 offset)
{
	__u8 doff;

	if (protocol == IPPROTO_UDP)
		return sizeof(struct udphdr);
	if (protocol != IPPROTO_TCP)
		return 0;
	if (bpf_skb_load_bytes(skb, offset + DOFF_OFFSET, &doff, sizeof(doff)))
		return 0;
	return (doff >> 4) * 4;
}

/* The DSCP of a packet, and the bytes of headers that each of its segments carries. */
static __always_inline __u8 parse(struct __sk_buff *skb, __u32 *header_bytes)
{
	__u32 offset = sizeof(struct ethhdr);

	*header_bytes = offset;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		offset += ip.ihl * 4;
		*header_bytes = offset + transport_header_bytes(skb, ip.protocol, offset);
		return ip.tos >> 2;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;

		if (bpf_skb_load_bytes(skb, offset, &ip, sizeof(ip)))
			return 0;
		offset += sizeof(ip);
		*header_bytes = offset + transport_header_bytes(skb, ip.nexthdr, offset);
		return (ip.priority << 2 | ip.flow_lbl[0] >> 6) & (DSCPS - 1);
	}
	return 0;
}

SEC("tc")
int meter_ingress(struct __sk_buff *skb)
{
	__u32 header_bytes;
	__u8 class = class_of_dscp[parse(skb, &header_bytes) & (DSCPS - 1)];
	__u64 bytes = skb->len;
	__u32 slot_index;

	if (skb->gso_segs > 1)
		bytes += (__u64)(skb->gso_segs - 1) * header_bytes;

	__u64 now_ns = bpf_ktime_get_ns();
	__u64 slot_number = (now_ns - start_ns) / NS_PER_SLOT;

	if (now_ns < start_ns || slot_number >= SLOTS) {
		__sync_fetch_and_add(&missed_bytes, bytes);
		return TC_ACT_UNSPEC;
	}
	slot_index = slot_number;

	struct slot *slot = bpf_map_lookup_elem(&slots, &slot_index);

	if (slot) /* always: the index was checked */
		__sync_fetch_and_add(&slot->bytes[class & (CLASSES - 1)], bytes);
	return TC_ACT_UNSPEC;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
