// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The data path with its clock in the test's hands: the whole of the real program, entered with a
 * time that the test sets. Tests of pkg/loader run it; it is in no released program.
 */
#include "../cakectl.bpf.c"

volatile __u64 inject_now_ns;
/* A test run always gives the packet a socket. */
volatile bool inject_forwarded;
/* What the kernel made of the packet's addresses and ports. */
volatile __u32 seen_hash;

SEC("tc")
int inject_egress(struct __sk_buff *skb)
{
	seen_hash = bpf_get_hash_recalc(skb);
	return shape(skb, inject_now_ns, !inject_forwarded);
}
