// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* What the program and user space share. Changing a layout here means raising LAYOUT_VERSION: user
 * space adopts pinned maps of its own version only.
 */
#ifndef CAKECTL_TYPES_H
#define CAKECTL_TYPES_H

#include <linux/types.h>

#define LAYOUT_VERSION 3

#define MAX_TINS        8
#define DSCP_VALUES     64
#define SOJOURN_BUCKETS 24
#define FLOW_WAYS       8
#define XPS_CHOICES     16
#define MARKS_MAX       256

/* What different CPUs or queues write does not share a line. Holds in maps whose first value starts
 * a page: those that can be mapped into memory.
 */
#define CACHE_LINE __attribute__((aligned(64)))

enum drop_reason {
	/* The departure lies beyond the horizon of the packet's origin (local or forwarded). */
	DROP_HORIZON,
	/* CoDel's signal to a flow that is not ECN-capable. */
	DROP_AQM,
	DROP_REASONS,
};

/* Why a packet was passed without shaping. */
enum bypass_reason {
	/* Not IPv4 or IPv6, so it has no DSCP (ARP, LLDP, PPPoE discovery, ...). */
	BYPASS_NOT_IP,
	/* Claims to be IP, but its first bytes cannot be read or say otherwise. */
	BYPASS_MALFORMED,
	/* A map lookup that cannot fail did: see the lookup's own comment. */
	BYPASS_NO_STATE,
	BYPASS_REASONS,
};

/* What is treated equally: each flow, each host, each pair of hosts; or hosts, and then the flows
 * of each.
 */
enum isolation {
	ISOLATE_FLOWS,
	ISOLATE_SRCHOST,
	ISOLATE_DSTHOST,
	ISOLATE_HOSTS,
	ISOLATE_DUAL_SRCHOST,
	ISOLATE_DUAL_DSTHOST,
	ISOLATE_TRIPLE,
};

enum event_kind {
	EVENT_ACTIVE,
	EVENT_FLOWS,
	EVENT_IDLE,
};

/* A rate is kept as nanoseconds a byte with 24 fractional bits: 64 kbit/s is 2^40.9, 400 Gbit/s is
 * 2^18.4, so that a packet of 1 MiB costs less than 2^64 at the slowest rate the planner uses
 * (8 kbit/s, 2^43.9) and the rounding error is below 2e-6 at the fastest. Zero means unlimited.
 */
struct tin_config {
	__u64 rate_ns_per_byte_q24;
	__u64 ceil_ns_per_byte_q24;
	/* CoDel's, for flows that nothing else stops; no target is no queue management. */
	__u64 aqm_target_ns;
	__u64 aqm_interval_ns;
};

/* What the line adds to a packet; see framing.h. */
struct framing {
	__s32 overhead_bytes;
	__u32 mpu_bytes;
	/* The line carries a packet in units of so many bytes, and sends so many for each that is
	 * begun: 53 for 48 with ATM's cells. PTM sends the packet's own bytes, and 1 for each 64.
	 */
	__u32 unit_bytes;
	__u32 unit_sent_bytes;
	__u8 own_bytes_sent;
	/* Whether the overhead is that of the IP packet, and so takes the place of the link's
	 * header. */
	__u8 over_ip;
	/* Whether anything of this is set. */
	__u8 in_use;
};

struct device_config {
	__u64 bandwidth_ns_per_byte_q24;
	/* How far ahead a departure may lie: for packets whose socket waits for them, and for
	 * those that were forwarded. */
	__u64 local_horizon_ns;
	__u64 forward_horizon_ns;
	/* The calendar's tick is 2^tick_shift ns and carries tick_bytes at the bandwidth. */
	__u32 tick_shift;
	__u32 tick_bytes;
	/* The unit of time that flows are counted in. */
	__u64 epoch_ns;
	/* A packet of this size is never a burst: MTU and link header. */
	__u32 full_packet_bytes;
	/* Nonzero where each flow of a tin is to get the same: no flow's guarantee may then exceed
	 * the bandwidth over the tin's flows, which bounds a plan that is late. */
	__u32 equal_flows;
	/* Transmit queues in use, and the queue_mapping values that this allows. */
	__u32 queues;
	enum isolation isolation;
	/* LAYOUT_VERSION of whoever made the maps. */
	__u32 layout_version;
	/* Until then what is foreseen is noted, to be compared with where packets went. */
	__u64 check_queues_until_ns;
	/* The most that a CPU books of a tick for packets to come; 0 where ticks are too small. */
	__u32 lease_bytes;
	__u32 pad;
	struct tin_config tins[MAX_TINS];
	__u8 dscp_to_tin[DSCP_VALUES];
	struct framing framing;
	/* Whether a packet's mark may name its tin: by the map mark_to_tin; else, with a mask, by
	 * what the mark holds under it, which counts fwmark_to_tin from 1. */
	__u8 by_mark;
	/* Whether the DSCP of a tunnel's packet is that of what it carries. */
	__u8 inner_dscp;
	/* Whether the DSCP is cleared once it was read. */
	__u8 wash;
	__u8 fwmark_shift;
	__u32 fwmark_mask;
	__u8 fwmark_to_tin[MAX_TINS];
};

/* Who decides a packet's transmit queue, in the kernel's order. */
enum queue_decision {
	QUEUE_BY_SOCKET,
	QUEUE_BY_XPS,
	QUEUE_BY_MAPPING,
	QUEUE_BY_HASH,
	QUEUE_DECISIONS, /* a power of two */
};

/* Where the packet at an address was foreseen to go, and by what. */
struct foreseen {
	__u64 skb_address;
	__u32 queue;
	enum queue_decision by;
};

/* Packets while queues were checked, as enqueued: a super-packet is one. */
struct foresight_counters {
	__u64 matched[QUEUE_DECISIONS];
	__u64 mismatched[QUEUE_DECISIONS];
	/* Nonzero where the driver of the device chooses queues itself (ndo_select_queue). */
	__u64 driver_chooses;
};

/* What XPS says for one CPU: the transmit queues it may use. */
struct xps_entry {
	__u16 count;
	__u16 queues[XPS_CHOICES];
};

struct aqm {
	/* When the next signal is due, or since when the sojourn has been below the target. */
	__u64 next_ns;
	/* Signals so far, and 1/sqrt of that with 16 fractional bits. */
	__u32 count;
	__u16 root_q16;
	__u16 phase; /* enum aqm_phase */
};

struct flow {
	/* The whole flow hash; 0 is an empty way. */
	__u32 tag;
	/* The last epoch that this flow is counted in. */
	__u32 counted;
	/* The first of those without a gap, modulo 2^16: a flow that is older looks young for a
	 * moment, once. */
	__u16 counted_since;
	/* What it weighs in its tin while it is counted; 0 where flows are treated equally. */
	__u16 weight;
	/* What has come of it since, and with, the packet that last found nothing waiting; no
	 * longer added up once it is enough to count. */
	__u32 waited_bytes;
	/* When the next byte leaves at the guaranteed rate. */
	__u64 guarantee_ns;
	/* The latest departure given: nothing of this flow may leave earlier. */
	__u64 departure_ns;
	struct aqm aqm;
};

struct flow_set {
	struct flow ways[FLOW_WAYS];
};

/* Epochs that can be told apart, from the present one on, and those that a flow at most counts
 * after its last packet has left.
 */
#define EPOCHS           128
#define FLOW_HOLD_EPOCHS 32

/* Activity of one (queue, tin). */
struct shard {
	/* The latest departure of a flow that waits. */
	__u64 busy_until_ns;
	/* The device's epoch that the count is of. */
	__u32 epoch;
	__u32 active;
	/* Active flows, as they are in the tin's device-wide count. */
	__s32 flows;
	/* The step that the controller was told last. */
	__u32 flows_reported;
} CACHE_LINE;

/* For how many of a shard's flows each epoch, modulo EPOCHS, is the last that they count in. */
struct shard_ends {
	__s32 flows[EPOCHS];
	/* And what these weigh. */
	__s32 weight[EPOCHS];
};

/* What a flow weighs that is the only one of its hosts. */
#define FLOW_WEIGHT      (1 << 14)
#define FLOW_WEIGHT_MASK 0x7fff

/* A host is counted by epochs of so many of the device's, and has so many of them. */
#define HOST_EPOCH  8
#define HOST_EPOCHS (EPOCHS / HOST_EPOCH)
#define HOST_SETS   128

/* A host with flows in one tin. */
struct host {
	/* The whole hash of its address; 0 is an empty way. */
	__u32 tag;
	/* The host's epoch that the count is of. */
	__u32 epoch;
	/* Active flows. */
	__s32 flows;
	/* The last of the device's epochs that a flow of it is counted in. */
	__u32 counted;
	/* For how many flows each of the host's epochs, modulo HOST_EPOCHS, is the last. */
	__s32 ends[HOST_EPOCHS];
};

struct host_set {
	struct host ways[FLOW_WAYS];
};

/* The hosts of the packet that a CPU is about to book, where their flows are counted. */
struct hosts_met {
	enum isolation isolation;
	/* Their slots: the key of the set, times FLOW_WAYS, plus the way. */
	__u32 source;
	__u32 destination;
	/* Active flows of the one that has more of them. */
	__u32 flows;
};

/* One tick of the calendar. */
struct tick {
	/* The tick's number above, the bytes booked in it below. */
	__u64 stamp_and_bytes;
	/* Of these, by guarantee; and those that time passed over before anybody booked them. */
	__u32 entitled;
	__u32 lost;
};

#define CALENDAR_TICKS 4096

/* What a CPU has booked of a tick for packets to come. */
struct lease {
	__u32 tick;
	/* An enum booking. */
	__u32 booking;
	__u32 bytes;
	/* What its packets have had of this tick, by such bookings. */
	__u32 used;
};

struct calendar {
	struct tick ticks[CALENDAR_TICKS];
};

struct line_state {
	/* The tick of the latest packet. */
	__u32 tick;
	/* No tick before this one has room. */
	__u32 free_hint;
	/* The last tick that idled in part. */
	__u32 idle_tick;
	/* The tick that the fields here are made for. */
	__u32 shift;
	__u32 tick_bytes;
	/* The end of what the furthest lump has filled. */
	__u32 lump_end;
	/* Bytes a tick that flows take by their guarantees, smoothed. */
	__s64 demand;
	/* Nanoseconds that a byte takes of what the guarantees leave, with 8 fractional bits. */
	__u64 leftover_ns_per_byte_q8;
	/* When all bytes booked from the leftover would have left at that rate. */
	__u64 leftover_ns;
	/* When all bytes that did not wait would have left at the part of the line that such bytes
	 * may take. */
	__u64 boost_ns;
	/* Bytes by which ticks are overfilled and that no later tick has repaid yet. */
	__s64 debt_bytes;
};

struct tin_clock {
	/* When all accepted bytes of the tin would have left at its ceiling. */
	__u64 ceil_ns;
	/* Active flows of the tin over all queues, and what they weigh. */
	__s32 flows;
	__s32 weight;
} CACHE_LINE;

struct device_state {
	struct line_state line CACHE_LINE;
	struct tin_clock tins[MAX_TINS];
	/* The present epoch, and when it began. */
	__u64 epoch_start_ns;
	__u32 epoch;
	/* Active flows of all tins. */
	__s32 flows;
	__u32 active_shards;
	__u32 sweeping;
	__u64 events_lost;
} CACHE_LINE;

struct drop_count {
	__u64 packets;
	__u64 bytes;
};

/* Packets are GSO segments, bytes are those on the line: with every segment's header and framing.
 */
struct tin_counters {
	__u64 packets;
	__u64 bytes;
	__u64 delayed_packets;
	__u64 sojourn_ns;
	__u64 ecn_marked_packets;
	struct drop_count drops[DROP_REASONS];
	/* Bucket i counts packets with a sojourn below 2^i units of 1,024 ns, and not below
	 * 2^(i-1). */
	__u64 sojourn[SOJOURN_BUCKETS];
};

struct queue_counters {
	__u64 packets;
	__u64 bytes;
};

/* What made the controller recompute. */
enum recompute_trigger {
	TRIGGER_ACTIVE,
	TRIGGER_FLOWS,
	TRIGGER_IDLE,
	TRIGGER_SET,
	TRIGGER_START,
	TRIGGERS,
};

/* What the controller did, kept with the maps so that it outlives the process. */
struct controller_stats {
	__u64 events;
	__u64 recomputes[TRIGGERS];
	__u64 unchanged_recomputes;
	__u64 rate_writes;
	/* CLOCK_REALTIME of the last write, in nanoseconds; 0 before the first. */
	__u64 last_change_ns;
};

struct event {
	__u64 time_ns;
	__u32 queue;
	__u32 flows;
	__u32 tin;
	enum event_kind kind;
};

#endif
