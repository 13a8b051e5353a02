// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

/* The plain way to shape with Earliest Departure Times, for comparison: one clock for everything
 * that leaves the device, as Cilium's bandwidth manager keeps one for a pod. A packet departs when
 * all packets before it have, at the rate; fq holds it until then.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NS_PER_SEC 1000000000ull
#define HORIZON_NS (2 * NS_PER_SEC)

volatile __u64 bytes_per_second;
volatile __u64 last_ns; /* departure of the last packet; concurrent updates may be lost */

SEC("tc")
int edt_egress(struct __sk_buff *skb)
{
	__u64 now_ns, start_ns, next_ns;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_OK;
	if (!bytes_per_second)
		return TC_ACT_OK;
	now_ns = bpf_ktime_get_ns();
	start_ns = skb->tstamp > now_ns ? skb->tstamp : now_ns;
	next_ns = last_ns + skb->wire_len * NS_PER_SEC / bytes_per_second;
	if (next_ns <= start_ns) {
		last_ns = start_ns;
		return TC_ACT_OK;
	}
	if (next_ns - now_ns >= HORIZON_NS)
		return TC_ACT_SHOT;
	last_ns = next_ns;
	skb->tstamp = next_ns;
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
