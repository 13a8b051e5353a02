// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The data path with its clock in the test's hands: the whole of the real program, entered with a
 * time that the test sets. Tests of pkg/loader run it; it is in no released program.
 */
#include "../cakectl.bpf.c"

volatile __u64 inject_now_ns;
/* A test run always gives the packet a socket. */
volatile bool inject_forwarded;
/* The flow's hash; 0 leaves it to the kernel. */
volatile __u32 inject_hash;

SEC("tc")
int inject_egress(struct __sk_buff *skb)
{
	if (inject_hash)
		bpf_set_hash(skb, inject_hash);
	return shape(skb, inject_now_ns, !inject_forwarded);
}

SEC("tc")
int inject_sweep(struct __sk_buff *skb)
{
	sweep_shards(inject_now_ns, config.epoch_ns);
	return 0;
}
