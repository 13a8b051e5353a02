// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The data path: an egress program that gives each packet an earliest departure time, which sch_fq
 * under each transmit queue holds it until.
 *
 * Theory of operation
 *
 * There is one pass over a packet, when it is enqueued, and no queue of our own: what is decided
 * here stands. Each packet is sorted into a tin by its mark or DSCP (tin.h), its transmit queue is
 * foreseen (queue.h), and its flow is looked up among those of that queue and tin (flow.h). It
 * counts with what it takes on the line (framing.h).
 *
 * Two things decide its departure (calendar.h). The flow's guarantee is a clock that runs at the
 * flow's part of the effective rate of its (queue, tin), which the controller plans from what is
 * active. The calendar says how many bytes of the line are booked in each tick to come. A packet is
 * booked at once if its flow is sparse, else where the line would stay idle, else in what the
 * guaranteed flows leave free, and at the latest where its guarantee begins, in the first tick with
 * room. So flows share equally, a ping does not wait, nothing is left idle, and no tick is sold
 * twice (but beside lumps, and that is repaid soon), even if all the counts that guarantees are
 * made from are wrong.
 *
 * A packet of a local socket is charged to it until it leaves, so the socket stops by itself, and
 * may book far ahead. A forwarded one has no such brake: its flow is told by CE marks or drops when
 * it waits too long (aqm.h).
 *
 * A tin's ceiling is a clock of its own; it holds back what the tin takes from the leftover, and,
 * beyond a slack, its guarantees.
 *
 * Rules that hold throughout: a flow's packets never leave out of order; a drop books nothing; a
 * change of a rate resets no clock; what cannot be parsed is passed on, unshaped and counted; the
 * verdict is always "unspecified", so that others' programs run too.
 */
#include "activity.h"
#include "aqm.h"
#include "calendar.h"
#include "clock.h"
#include "flow.h"
#include "foresight.h"
#include "frame.h"
#include "framing.h"
#include "host.h"
#include "queue.h"
#include "tin.h"

#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT   2

/* How far a tin's guarantees may run ahead of its ceiling together. */
#define CEIL_SLACK_NS 10000000ULL

/* Packets that a forwarded flow may have waiting whatever the horizon. */
#define FORWARD_PACKETS_MIN 4

enum fate {
	SENT,
	SENT_MARKED,
	DROPPED_BY_AQM,
	DROPPED_BY_HORIZON,
};

static __always_inline int bypass(enum bypass_reason reason)
{
	__u64 *count = bpf_map_lookup_elem(&bypassed, &reason);

	if (count)
		(*count)++;
	return TC_ACT_UNSPEC;
}

/* Sets when fq may let the packet go, and by which clock: a forwarded packet has none, and newer
 * fqs warn when they have to guess. The helper knows IP only, not the tags before it.
 */
static __always_inline void depart_at(struct __sk_buff *skb, __u64 departure)
{
	if (bpf_skb_set_tstamp(skb, departure, BPF_SKB_TSTAMP_DELIVERY_MONO))
		skb->tstamp = departure;
}

/* The bucket whose upper bound, 2^bucket microseconds, is the first above the sojourn. */
static __always_inline __u32 sojourn_bucket(__u64 sojourn_ns)
{
	__u64 microseconds = sojourn_ns >> 10;
	__u32 bucket = 0;

	if (!microseconds)
		return 0;
	if (microseconds >> SOJOURN_BUCKETS)
		return SOJOURN_BUCKETS - 1;
	for (int step = 16; step; step /= 2) {
		if (microseconds >> step) {
			microseconds >>= step;
			bucket += step;
		}
	}
	return bucket + microseconds < SOJOURN_BUCKETS ? bucket + microseconds
						       : SOJOURN_BUCKETS - 1;
}

/* What bytes take at the flow's guarantee: an equal part of what its shard or, where the plan does
 * not have that yet, its tin is given. A flow that is not counted yet counts itself in.
 */
static __always_inline __u64 flow_cost(const struct flow *flow, const struct shard *shard,
				       const struct tin_clock *tin,
				       const struct tin_config *tin_cfg, __u64 cell_rate,
				       __u32 bytes)
{
	__u32 itself = !flow_is_counted(flow, shard->epoch);
	__u64 tin_flows = later_ns(flows_of(tin->flows) + itself, 1);
	__u64 cost;

	if (!cell_rate)
		return cost_ns(bytes, tin_cfg->rate_ns_per_byte_q24) * tin_flows;
	cost = cost_ns(bytes, cell_rate) * later_ns(flows_of(shard->flows) + itself, 1);
	if (!config.equal_flows)
		return cost;
	return later_ns(cost, cost_ns(bytes, config.bandwidth_ns_per_byte_q24) * tin_flows);
}

/* The same where flows weigh differently: what the tin is given, by the flow's part of the weight
 * of all of them. With the plan that goes with it each flow of the tin, wherever it is, has an
 * equal part of what its shard is given. A function of its own, so that the verifier looks at it
 * once.
 */
__noinline __u64 flow_cost_weighed(__u32 cell, bool counted, __u64 cell_rate, __u32 bytes)
{
	__u32 zero = 0;
	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);
	struct hosts_met *met = bpf_map_lookup_elem(&hosts_met, &zero);

	/* The caller has looked them up before. */
	if (!shard || !met)
		return 0;

	const struct tin_clock *tin = &device.tins[bounded(cell, MAX_TINS)];
	const struct tin_config *tin_cfg = &config.tins[bounded(cell, MAX_TINS)];
	__u64 tin_flows = later_ns(flows_of(tin->flows) + !counted, 1);
	__u64 shard_flows = later_ns(flows_of(shard->flows) + !counted, 1);
	__u32 weight = hosts_weigh(met, counted);
	__u64 tin_weight = flows_of(tin->weight) + (counted ? 0 : weight);

	if (!cell_rate)
		return weighed_ns(cost_ns(bytes, tin_cfg->rate_ns_per_byte_q24), 1, 1, tin_weight,
				  weight);
	return later_ns(
	    weighed_ns(cost_ns(bytes, cell_rate), shard_flows, tin_flows, tin_weight, weight),
	    weighed_ns(cost_ns(bytes, config.bandwidth_ns_per_byte_q24), 1, 1, tin_weight, weight));
}

/* Whether a packet would wait for longer than any may. A forwarded flow may always have some
 * packets waiting, or no TCP would get going at a low rate.
 */
static __always_inline bool beyond_horizon(bool local, const struct booking_request *request,
					   __u64 sojourn)
{
	__u64 packet_cost = request->guarantee_cost;

	if (sojourn > config.local_horizon_ns)
		return true;
	if (local || sojourn <= config.forward_horizon_ns)
		return false;
	if (request->bytes > config.full_packet_bytes)
		packet_cost = packet_cost / request->bytes * config.full_packet_bytes;
	return sojourn > FORWARD_PACKETS_MIN * packet_cost;
}

/* What a packet that will wait for so long comes to. One that finds nothing of its flow waiting is
 * never signalled, nor is a wait of less than one and a half packets at the flow's own guarantee.
 */
static __always_inline enum fate fate_of(struct __sk_buff *skb, struct flow *flow,
					 const struct tin_config *tin_cfg, bool local,
					 const struct booking_request *request, __u64 sojourn)
{
	__u64 now = request->now;

	if (beyond_horizon(local, request, sojourn))
		return DROPPED_BY_HORIZON;
	if (local || !tin_cfg->aqm_target_ns)
		return SENT;

	__u64 own = request->guarantee_cost + request->guarantee_cost / 2;
	__u64 waiting = flow->departure_ns > now ? sojourn : 0;

	if (!aqm_signals(&flow->aqm, now, waiting, later_ns(tin_cfg->aqm_target_ns, own),
			 tin_cfg->aqm_interval_ns))
		return SENT;
	return bpf_skb_ecn_set_ce(skb) ? SENT_MARKED : DROPPED_BY_AQM;
}

/* local: whether the packet is still charged to a socket of this machine. */
static __always_inline int shape(struct __sk_buff *skb, __u64 now, bool local)
{
	enum bypass_reason reason;
	struct frame frame;

	if (!frame_find(skb, &frame, &reason))
		return bypass(reason);

	__u32 tin = tin_of(skb, &frame);
	__u32 hash = bpf_get_hash_recalc(skb);
	enum queue_decision queue_by;
	__u32 queue = queue_foresee(skb, hash, bpf_get_smp_processor_id(), &queue_by);
	/* The queue whose share the flow has a part in. */
	__u32 home = queue;

	epoch_roll(now, config.epoch_ns);
	if (config.isolation) {
		struct frame inner = frame;

		tunnel_enter(skb, &inner);
		__u32 host_hash = hosts_meet(skb, &inner, tin);
		if (!isolates_both_levels(config.isolation)) {
			hash = host_hash;
			home = scale_hash(hash, config.queues);
		}
	}
	__u32 cell = home * MAX_TINS + tin;

	struct shard *shard = bpf_map_lookup_elem(&shards, &cell);
	__u64 *cell_rate = bpf_map_lookup_elem(&cells, &cell);
	struct tin_counters *stats = bpf_map_lookup_elem(&tin_stats, &tin);
	struct queue_counters *queue_stat = bpf_map_lookup_elem(&queue_stats, &queue);
	/* Misses only when the device grew queues and the maps have not followed yet. */
	if (!shard || !cell_rate || !stats || !queue_stat)
		return bypass(BYPASS_NO_STATE);

	struct tin_clock *tin_clock = &device.tins[bounded(tin, MAX_TINS)];
	const struct tin_config *tin_cfg = &config.tins[bounded(tin, MAX_TINS)];
	__u32 bytes = config.framing.in_use ? framed(skb, frame.offset) : skb->wire_len;
	__u32 packets = skb->gso_segs ?: 1;

	shard_roll(shard, cell);
	__u32 slot;
	struct flow *flow =
	    flow_find((home * tin_count + tin) * flow_sets, hash, shard->epoch, now, &slot);
	if (!flow)
		return bypass(BYPASS_NO_STATE);

	__u64 guarantee = later_ns(flow->guarantee_ns, now);
	__u64 earliest = later_ns(flow->departure_ns, now);
	bool backlogged = guarantee != now || earliest != now;
	__u64 ceil_cost = cost_ns(bytes, tin_cfg->ceil_ns_per_byte_q24);
	__u64 ceil = tin_clock->ceil_ns;
	struct booking_request request = {
	    .now = now,
	    .guarantee = guarantee,
	    .earliest = earliest,
	    .leftover_earliest = ceil,
	    .guarantee_cost = isolates_both_levels(config.isolation)
				  ? flow_cost_weighed(cell, flow_is_counted(flow, shard->epoch),
						      *cell_rate, bytes)
				  : flow_cost(flow, shard, tin_clock, tin_cfg, *cell_rate, bytes),
	    .shift = config.tick_shift & 63,
	    .tick_bytes = config.tick_bytes,
	    .bytes = bytes,
	    .tin = tin,
	};

	if (ceil > request.guarantee + CEIL_SLACK_NS)
		request.guarantee = ceil - CEIL_SLACK_NS;
	if (request.tick_bytes) {
		line_arrive(&request);
		/* A packet whose tin is ahead of its ceiling is no boost either. */
		if (backlogged || ceil > now + CEIL_SLACK_NS || !line_boosts(&request))
			line_find(&request);
	} else {
		request.departure = later_ns(request.earliest, ceil);
	}

	/* A packet's own pacing is kept; a time further ahead than anything waits is no pacing but
	 * a receive timestamp of another clock. */
	__u64 own = skb->tstamp;
	__u64 paced = own > now && own - now < config.local_horizon_ns ? own : now;
	__u64 departure = later_ns(request.departure, paced);
	__u64 sojourn = departure - now;
	enum fate fate = fate_of(skb, flow, tin_cfg, local, &request, sojourn);
	bool dropped = fate >= DROPPED_BY_AQM;

	if (flow_counts(flow, shard->epoch, backlogged, bytes, config.full_packet_bytes)) {
		shard_count(cell, slot, dropped ? now : departure, config.epoch_ns,
			    config.isolation);
		activity_note(shard, home, tin, now, dropped ? now : departure,
			      FLOW_HOLD_EPOCHS * config.epoch_ns);
	}
	if (dropped) {
		enum drop_reason reason = fate == DROPPED_BY_AQM ? DROP_AQM : DROP_HORIZON;

		stats->drops[reason].packets += packets;
		stats->drops[reason].bytes += bytes;
		return TC_ACT_SHOT;
	}
	if (fate == SENT_MARKED)
		stats->ecn_marked_packets += packets;

	__u64 late = 0;
	if (request.booking != BOOKED_FROM_LEFTOVER) {
		/* Time that the guarantee could not use while packets waited is lost as well. */
		__u64 passed = flow->departure_ns > now && flow->guarantee_ns < now
				   ? now - flow->guarantee_ns
				   : 0;

		late = late_ns(&request, paced);
		request.unserved = lost_bytes(&request, late + passed);
	}
	if (request.tick_bytes)
		line_book(&request);
	if (ceil_cost)
		clock_take(&tin_clock->ceil_ns, now, ceil_cost);
	/* The guarantee goes on from where it stood; what was missed is made up for by the demand,
	 * not by a burst. */
	flow->guarantee_ns = request.guarantee + late + request.guarantee_cost;
	flow->departure_ns = departure;

	if (config.check_queues_until_ns > now)
		foresight_note(skb, queue, queue_by);
	queue_stat->packets += packets;
	queue_stat->bytes += bytes;
	stats->packets += packets;
	stats->bytes += bytes;
	if (sojourn) {
		__u32 bucket = sojourn_bucket(sojourn);

		stats->delayed_packets += packets;
		stats->sojourn_ns += sojourn * packets;
		if (bucket < SOJOURN_BUCKETS)
			stats->sojourn[bucket] += packets;
	} else {
		stats->sojourn[0] += packets;
	}
	if (sojourn || own > departure)
		depart_at(skb, departure);
	if (config.wash && frame.dscp)
		frame_wash(skb, frame.offset, frame.protocol);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int cakectl_egress(struct __sk_buff *skb)
{
	return shape(skb, bpf_ktime_get_ns(), skb->sk);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
