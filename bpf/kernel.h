// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The few kernel fields that are read. The loader relocates each access to the running kernel's
 * layout, so only names and types matter here, not offsets.
 */
#ifndef CAKECTL_KERNEL_H
#define CAKECTL_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
	__u16 skc_tx_queue_mapping;
};

struct sock {
	struct sock_common __sk_common;
};

struct net_device_ops {
	__u16 (*ndo_select_queue)(void *device, void *skb, void *subordinate);
};

struct net_device {
	const struct net_device_ops *netdev_ops;
};

struct sk_buff {
	struct sock *sk;
	struct net_device *dev;
	__u16 queue_mapping;
	__u8 ooo_okay : 1;
	__u8 encapsulation : 1;
	__u16 transport_header;
	__u16 inner_transport_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
};

struct skb_shared_info {
	unsigned int gso_type;
};

#pragma clang attribute pop

/* Since 6.2. A kernel without it makes the loader set has_kernel_ctx to false. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

#endif
