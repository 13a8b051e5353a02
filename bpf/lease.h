// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Booking ahead: at high rates a CPU books more of a tick than its packet needs and hands that out
 * to the packets that follow, so that it writes what all CPUs share once for many packets.
 *
 * It books at most as much ahead as it has used of that tick in that way. So a CPU that sends
 * little books nothing ahead, and none leaves more unused than it used.
 */
#ifndef CAKECTL_LEASE_H
#define CAKECTL_LEASE_H

#include "maps.h"

/* The part of what a tick has room for that is booked ahead. A tick counts as full while leases in
 * it are not used up; towards its end they get small, so that little is left unused in it.
 */
#define LEASE_PART 8

static __always_inline struct lease *lease_of_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&leases, &zero);
}

static __always_inline bool lease_is_for(const struct lease *lease, __u32 tick, __u32 booking)
{
	return lease->tick == tick && lease->booking == booking;
}

/* Pays for a packet out of what is booked already, and returns the bytes that are still to be
 * booked for it.
 */
static __always_inline __u32 lease_pay(struct lease *lease, __u32 tick, __u32 booking, __u32 bytes)
{
	if (!lease_is_for(lease, tick, booking))
		return bytes;

	__u32 paid = lease->bytes < bytes ? lease->bytes : bytes;

	lease->bytes -= paid;
	lease->used += paid;
	return bytes - paid;
}

/* Makes an empty lease of it, for another tick or another way to book. */
static __always_inline void lease_restart(struct lease *lease, __u32 tick, __u32 booking)
{
	lease->tick = tick;
	lease->booking = booking;
	lease->bytes = 0;
	lease->used = 0;
}

/* Notes that bytes are booked for a packet, which found the lease empty, and returns how many to
 * book ahead in a tick that has room for so many.
 */
static __always_inline __u32 lease_extend(struct lease *lease, __u32 bytes, __u32 most, __u32 room)
{
	__u32 ahead = lease->used < most ? lease->used : most;

	if (ahead > room / LEASE_PART)
		ahead = room / LEASE_PART;
	lease->used += bytes;
	lease->bytes = ahead;
	return ahead;
}

#endif
