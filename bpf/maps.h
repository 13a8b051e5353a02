// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Every map of the data path, and the constants that are fixed at load. */
#ifndef CAKECTL_MAPS_H
#define CAKECTL_MAPS_H

#include "kernel.h"
#include "types.h"

/* Set by the loader before load. */
const volatile __u32 link_header_bytes = 14; /* 0 on devices without a link layer */
const volatile __u32 flow_sets = 128;        /* a power of two; a set holds FLOW_WAYS flows */
const volatile __u32 tin_count = MAX_TINS;   /* tins of the preset */
const volatile __u32 hash_seed = 0;          /* of addresses; a random number */
const volatile bool has_kernel_ctx = true;   /* bpf_cast_to_kern_ctx exists */

/* index modulo size, a power of two. The compiler may prove the mask needless and drop it, or mask
 * a copy: the verifier has to see it on the register that is used.
 */
#define bounded(index, size)                                                                       \
	({                                                                                         \
		__u64 bounded_index = (index);                                                     \
		asm("%0 &= %1" : "+r"(bounded_index) : "i"((size) - 1));                           \
		bounded_index;                                                                     \
	})

/* A count as it is meant: two CPUs can bring it below zero for a moment. */
static __always_inline __u32 flows_of(__s32 count)
{
	return count > 0 ? count : 0;
}

/* What a device has one of is a variable, which needs no lookup. Its section is a map of its own,
 * with one value at key 0; the variable is hidden from the loader, which knows it as that.
 */
#define MAP_OF_ITS_OWN(name) __hidden SEC(".data." #name)

/* What the user asked for, in the data path's units. Written by the control plane at attach and
 * `set`; each field is read on its own, so a change takes effect field by field.
 */
struct device_config config MAP_OF_ITS_OWN(config);

/* The clocks and counts that all queues share. Written by the data path only. */
struct device_state device MAP_OF_ITS_OWN(device);

/* What is booked in each tick to come. Written by the data path; by the control plane only when the
 * length of a tick changes.
 */
struct calendar line_calendar MAP_OF_ITS_OWN(calendar);

/* Key: a packet's mark. Value: the tin that the user gives it. Written by the control plane. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MARKS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} mark_to_tin SEC(".maps");

/* Key: CPU. Value: the transmit queues that XPS allows it; count 0 is no XPS. Written by the
 * control plane. Sized by the loader: possible CPUs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct xps_entry);
} xps SEC(".maps");

/* Key: queue * MAX_TINS + tin. Value: effective rate of that (queue, tin) in ns a byte Q24; 0 where
 * the plan has none. Written by the controller only, one cell a write. Sized by the loader: queues
 * * MAX_TINS, so that a queue's tins share one cache line.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_TINS);
	__type(key, __u32);
	__type(value, __u64);
} cells SEC(".maps");

/* Key 0. Value: what this CPU has booked for packets to come. Written by the data path only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lease);
} leases SEC(".maps");

/* Key: queue * MAX_TINS + tin. Value: activity of that (queue, tin). Written by the data path; the
 * controller reads it through a memory mapping. Sized by the loader: queues * MAX_TINS.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_TINS);
	__type(key, __u32);
	__type(value, struct shard);
} shards SEC(".maps");

/* Key: as in shards. Value: when the flows of that (queue, tin) cease to count. Written by the data
 * path only. Sized by the loader: queues * MAX_TINS.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TINS);
	__type(key, __u32);
	__type(value, struct shard_ends);
} shard_ends SEC(".maps");

/* Key: (queue * tin_count + tin) * flow_sets + set. Value: the flows of one set. Written by the
 * data path only. Sized by the loader: queues * tin_count * flow_sets; 64 queues x 4 tins x 1,024
 * flows are 12.6 MB.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_set);
} flows SEC(".maps");

/* Key: (tin * 2 + direction) * HOST_SETS + set; direction is 0 for hosts that send, 1 for those
 * that receive. Value: the hosts of one set. Written by the data path only. Sized by the loader:
 * tin_count * 2 * HOST_SETS; 4 tins are 0.7 MB.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct host_set);
} host_table SEC(".maps");

/* Key 0. Value: the hosts of this CPU's packet, on their way from where they are found to where
 * flows are counted. Written and read by the data path within one packet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hosts_met);
} hosts_met SEC(".maps");

/* Key: tin. Value: counters of that tin on this CPU. Written by the data path only. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_TINS);
	__type(key, __u32);
	__type(value, struct tin_counters);
} tin_stats SEC(".maps");

/* Key: foreseen transmit queue. Value: counters of that queue on this CPU. Written by the data path
 * only. Sized by the loader: queues.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct queue_counters);
} queue_stats SEC(".maps");

/* Key: enum bypass_reason. Value: packets passed unshaped on this CPU. Written by the data path
 * only.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BYPASS_REASONS);
	__type(key, enum bypass_reason);
	__type(value, __u64);
} bypassed SEC(".maps");

/* Records of struct event, for the controller. An event is 32 bytes on the ring, so 64 KiB hold
 * 2,048: four changes of each of 64 queues x 8 tins. What does not fit is counted in
 * device_state.events_lost, and the controller reads the shards anyway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
	__type(value, struct event);
} events SEC(".maps");

/* Key 0. Value: the controller's counters. Written by the controller only; the data path does not
 * look at it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct controller_stats);
} controller SEC(".maps");

/* Key 0. Value: a number on its way through address_of(). Written and read by the data path at
 * once.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} scratch SEC(".maps");

struct sweeper {
	struct bpf_timer timer;
};

/* Key 0. Value: the timer that finds idle shards. Written by the data path only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sweeper);
} sweeper_map SEC(".maps");

#endif
