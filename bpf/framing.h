// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What a packet takes on the line behind the device: a modem adds headers, and may cut the whole
 * into cells. The formulas are CAKE's; pkg/framing has them in plain Go.
 */
#ifndef CAKECTL_FRAMING_H
#define CAKECTL_FRAMING_H

#include "frame.h"
#include "peek.h"

/* The kernel's marks of a packet that is yet to be cut into segments. */
#define SKB_GSO_TCPV4 (1 << 0)
#define SKB_GSO_TCPV6 (1 << 4)
#define GSO_BY_FRAGS  0xffff

#define NO_TRANSPORT_HEADER 0xffff
#define TCP_OFFSET_BYTE     12 /* its upper half is the header's length in words of 4 bytes */
#define UDP_HEADER_BYTES    8

/* What clocks can count at the slowest rate. */
#define FRAMED_BYTES_MAX ((1 << 20) - 1)

/* What one packet (a segment) of so many bytes, without the link's header where the overhead is
 * over IP, takes on the line. Without branches for the kinds of lines, so that it costs little here
 * and little of the verifier's patience.
 */
static __always_inline __u32 framed_bytes(const struct framing *framing, __s32 bytes)
{
	__u32 units;

	bytes += framing->overhead_bytes;
	if (bytes < (__s32)framing->mpu_bytes)
		bytes = framing->mpu_bytes;
	units = ((__u32)bytes + framing->unit_bytes - 1) / framing->unit_bytes;
	return bytes * framing->own_bytes_sent + units * framing->unit_sent_bytes;
}

/* A packet that is cut into segments, the last of which may be shorter. */
struct gso {
	__u32 bytes;         /* with one header */
	__u32 header_bytes;  /* of each segment, from the link's on */
	__u32 segment_bytes; /* without it */
	__u32 link_bytes;    /* of the header, that are no part of what is framed */
};

/* How many segments there are. */
static __always_inline __u32 gso_segments(const struct gso *gso)
{
	if (!gso->segment_bytes || gso->bytes <= gso->header_bytes)
		return 1;
	return (gso->bytes - gso->header_bytes + gso->segment_bytes - 1) / gso->segment_bytes;
}

/* What all segments take on the line. */
static __always_inline __u32 framed_gso_bytes(const struct framing *framing, const struct gso *gso)
{
	__u32 full = gso_segments(gso) - 1;
	__u64 sum = (__u64)full *
		    framed_bytes(framing, gso->header_bytes + gso->segment_bytes - gso->link_bytes);

	sum += framed_bytes(framing, gso->bytes - full * gso->segment_bytes - gso->link_bytes);
	return sum < FRAMED_BYTES_MAX ? sum : FRAMED_BYTES_MAX;
}

/* Asks the kernel how it will cut a packet; false where it does not know either. As with its own
 * accounting the header is the innermost one, but on every kernel, and for packets from guests too.
 */
static __always_inline bool gso_of(struct __sk_buff *ctx, struct gso *gso)
{
	struct sk_buff *skb = address_of(ctx);
	struct skb_shared_info *shared;
	unsigned char *head;
	__u16 transport;
	__u32 type;
	__u8 words;

	if (!skb)
		return false;
	if (BPF_CORE_READ_BITFIELD_PROBED(skb, encapsulation))
		transport = BPF_CORE_READ(skb, inner_transport_header);
	else
		transport = BPF_CORE_READ(skb, transport_header);
	if (transport == NO_TRANSPORT_HEADER)
		return false;
	head = BPF_CORE_READ(skb, head);
	shared = (void *)(head + BPF_CORE_READ(skb, end));
	type = BPF_CORE_READ(shared, gso_type);

	gso->header_bytes = head + transport - BPF_CORE_READ(skb, data);
	if (!(type & (SKB_GSO_TCPV4 | SKB_GSO_TCPV6))) {
		gso->header_bytes += UDP_HEADER_BYTES;
		return true;
	}
	if (bpf_skb_load_bytes(ctx, gso->header_bytes + TCP_OFFSET_BYTE, &words, sizeof(words)))
		return false;
	gso->header_bytes += (words >> 4) * 4;
	return true;
}

/* What a packet takes on the line, if its IP header is at the offset. A function of its own, so
 * that the verifier looks at it once.
 */
__noinline __u32 framed(struct __sk_buff *skb, __u32 ip_offset)
{
	const struct framing *framing = &config.framing;
	__u32 length = skb->len;
	__u32 segment = skb->gso_size;
	__u32 link_bytes = ip_offset * framing->over_ip;

	/* SCTP's pieces are as large as they are: they count as one. */
	if (segment && segment != GSO_BY_FRAGS) {
		struct gso gso = {
		    .bytes = length,
		    .segment_bytes = segment,
		    .link_bytes = link_bytes,
		};

		if (gso_of(skb, &gso))
			return framed_gso_bytes(framing, &gso);
	}
	return framed_bytes(framing, length - link_bytes);
}

#endif
