// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* framing.h for every size at once. Tests of pkg/loader run it; it is in no released program. */
#include "../framing.h"

#define SIZES     65536
#define GSO_CASES 4096

struct framing line;
/* By the packet's size. */
__u32 framed_of[SIZES];
struct gso gso_cases[GSO_CASES];
__u32 gso_framed_of[GSO_CASES];

static long frame_size(__u32 index, void *unused)
{
	struct framing framing = line;

	framed_of[bounded(index, SIZES)] = framed_bytes(&framing, index);
	return 0;
}

static long frame_gso(__u32 index, void *unused)
{
	struct framing framing = line;
	struct gso gso = gso_cases[bounded(index, GSO_CASES)];

	gso_framed_of[bounded(index, GSO_CASES)] = framed_gso_bytes(&framing, &gso);
	return 0;
}

SEC("tc")
int framing_all(struct __sk_buff *skb)
{
	bpf_loop(SIZES, frame_size, NULL, 0);
	bpf_loop(GSO_CASES, frame_gso, NULL, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
