// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The calendar of the line: how many bytes are booked to leave in each tick of time.
 *
 * A clock knows how much is booked in all; the calendar knows when it leaves. So no tick is sold
 * twice, whatever the flow counts say, and a flow that wants more than its guarantee finds the
 * ticks that the others leave free.
 *
 * A tick is a power of two of nanoseconds, 1 ms or longer, and holds what the bandwidth carries in
 * that time. Ticks live in a ring; each is stamped with its number, so that a tick of an earlier
 * round counts as empty and need not be cleared.
 */
#ifndef CAKECTL_CALENDAR_H
#define CAKECTL_CALENDAR_H

#include "clock.h"
#include "lease.h"

/* Probes for a free tick. What is not found within them is booked at the last one. */
#define NEAR_PROBES 2
#define FREE_PROBES 4
#define HINT_PROBES 4

/* Ticks that one packet asks to repay what is overfilled. */
#define REPAY_TICKS 32

/* Ticks that are closed at once. After a longer silence the ones before count for nothing. */
#define CLOSE_TICKS 16

/* The smoothing of demand: a tick counts for 1/64, or 1/8. */
#define DEMAND_SHIFT      6
#define DEMAND_IDLE_SHIFT 3

/* A byte of the line that stays idle says so much of what guarantees do not use. */
#define IDLE_WEIGHT 2

/* A tick of which more than this part stays idle makes the leftover clock stop waiting. */
#define IDLE_PART 32

/* For how long that shows. */
#define IDLE_MEMORY_TICKS 16

/* The part of the line that leftover bookings may always have, and that boosts may take. */
#define LEFTOVER_FLOOR 128
#define BOOST_PART     4

/* A packet below this part of a full one may be boosted beside any other. */
#define SMALL_PART 4

/* Ticks by which a departure may miss its guarantee before that counts as lost. */
#define LAG_TICKS 2

/* A flow that has fewer packets, at its guarantee, or ticks booked ahead is shallow: TCP is, as a
 * rule.
 */
#define SHALLOW_PACKETS 2
#define SHALLOW_TICKS   2

/* With no more packets ahead than this, in this tick and the next, the line is about to idle. */
#define NEAR_PACKETS 2

enum booking {
	BOOKED_BY_GUARANTEE,
	BOOKED_FROM_LEFTOVER,
	BOOKED_AS_BOOST,
};

/* One packet's way through the calendar: what is asked, and what is found. */
struct booking_request {
	__u64 now;
	__u64 ns_per_byte_q24;
	/* When the flow's guarantee lets the packet leave; what was booked from the leftover moves
	 * it. */
	__u64 guarantee;
	/* The flow's last departure, or now. */
	__u64 earliest;
	/* The same for what is no guarantee of its tin's. */
	__u64 leftover_earliest;
	__u64 guarantee_cost;
	__u32 shift;
	__u32 tick_bytes;
	__u32 full_packet_bytes;
	__u32 lease_bytes;
	__u32 bytes;
	/* Whether the flow has packets waiting or is ahead of its guarantee, or its tin is ahead
	 * of its ceiling. Such a packet is no boost. */
	__u32 waits;
	/* Whether no other tin has active flows. */
	__u32 alone;

	/* The tick of the departure, and when in it. */
	__u32 tick;
	__u64 departure;
	/* Bytes that the flow would have got by its guarantee, beside those booked by it. */
	__u32 unserved;
	/* With a leftover booking out of turn: where the leftover stands after it. */
	__u64 leftover_ns;
	enum booking booking;
};

/* A request with what it is made against. Global functions look the maps up by themselves, so that
 * the verifier looks at each once and not for every path that leads to it.
 */
struct line {
	struct calendar *calendar;
	struct line_state *state;
	__u64 now;
	__u64 ns_per_byte_q24;
	__u32 shift;
	__u32 tick_bytes;
	__u32 tick; /* that of now */
};

static __always_inline bool line_open(struct line *line, const struct booking_request *request)
{
	__u32 zero = 0;
	struct device_state *state = bpf_map_lookup_elem(&device, &zero);

	line->calendar = bpf_map_lookup_elem(&calendar, &zero);
	/* Arrays of one entry always have it. */
	if (!state || !line->calendar)
		return false;
	line->state = &state->line;
	line->now = request->now;
	line->ns_per_byte_q24 = request->ns_per_byte_q24;
	line->shift = request->shift & 63;
	line->tick_bytes = request->tick_bytes;
	line->tick = line->now >> line->shift;
	return true;
}

static __always_inline struct tick *tick_at(struct line *line, __u32 tick)
{
	return &line->calendar->ticks[bounded(tick, CALENDAR_TICKS)];
}

/* Bytes booked in a tick. How much of the present one has passed is for tick_gone to say. */
static __always_inline __u32 tick_booked(struct line *line, __u32 tick)
{
	__u64 word = *(volatile __u64 *)&tick_at(line, tick)->stamp_and_bytes;

	return word >> 32 == tick ? (__u32)word : 0;
}

static __always_inline __u32 tick_gone(struct line *line)
{
	__u64 passed = line->now & ((1ULL << line->shift) - 1);

	return passed * line->tick_bytes >> line->shift;
}

static __always_inline bool tick_has_room(struct line *line, __u32 tick)
{
	return tick_booked(line, tick) < line->tick_bytes;
}

/* Books bytes in a tick. Whoever is the first to use a tick of a new round clears its tallies; what
 * another CPU adds to those at that very moment is lost to the estimates, never to the line.
 */
static __always_inline void tick_book(struct calendar *calendar, __u32 tick, __u32 bytes)
{
	struct tick *at = &calendar->ticks[bounded(tick, CALENDAR_TICKS)];
	__u64 word = *(volatile __u64 *)&at->stamp_and_bytes;

	if (word >> 32 != tick) {
		__u64 fresh = (__u64)tick << 32 | bytes;

		if (__sync_val_compare_and_swap(&at->stamp_and_bytes, word, fresh) == word) {
			at->entitled = 0;
			at->lost = 0;
			return;
		}
	}
	__sync_fetch_and_add(&at->stamp_and_bytes, bytes);
}

/* A moving average that also moves for differences too small to be divided. */
static __always_inline __s64 smoothed(__s64 average, __s64 sample, __u32 shift)
{
	__s64 difference = sample - average;

	if (difference > 0 && difference < 1 << shift)
		return average + 1;
	if (difference < 0 && -difference < 1 << shift)
		return average - 1;
	return average + (difference >> shift);
}

struct closing {
	struct calendar *ticks;
	__u64 start_ns; /* of the first tick to close */
	__u64 leftover_ns;
	__s64 demand;
	__u32 tick;
	__u32 tick_bytes;
	__u32 shift;
	__u32 idle_tick;
};

static long line_close_tick(__u32 index, struct closing *closing)
{
	__u32 tick = closing->tick + index;
	__u32 tick_bytes = closing->tick_bytes;
	struct tick *at = &closing->ticks->ticks[bounded(tick, CALENDAR_TICKS)];
	__u64 word = at->stamp_and_bytes;
	__u32 booked = 0, lost = 0, rest = 0;
	__s64 entitled = 0;

	if (word >> 32 == tick) {
		booked = word;
		entitled = at->entitled;
		lost = at->lost;
	}
	if (entitled > 4LL * tick_bytes)
		entitled = 4LL * tick_bytes;
	if (booked < tick_bytes) {
		rest = tick_bytes - booked;
		entitled -= (__s64)IDLE_WEIGHT * rest;
		if (entitled < 0)
			entitled = 0;
	}
	/* The line has idled: what waits for the leftover need not wait longer. */
	if (rest + lost > tick_bytes / IDLE_PART) {
		__u64 end = closing->start_ns + ((__u64)(index + 1) << (closing->shift & 63));

		closing->leftover_ns = earlier_ns(closing->leftover_ns, end);
		closing->idle_tick = tick;
	}
	/* While much of the line idles, less demand than before is believed sooner. */
	if (entitled < closing->demand && rest + lost > tick_bytes / 4)
		closing->demand = smoothed(closing->demand, entitled, DEMAND_IDLE_SHIFT);
	else
		closing->demand = smoothed(closing->demand, entitled, DEMAND_SHIFT);
	return 0;
}

/* Closes the ticks before this one: what flows took by their guarantee in them foretells what to
 * keep free for them further out. The first packet of a tick does it.
 */
__noinline int line_close(__u64 now_ns, __u32 tick_bytes, __u32 shift)
{
	__u32 zero = 0;
	struct calendar *ticks = bpf_map_lookup_elem(&calendar, &zero);
	struct device_state *device_state = bpf_map_lookup_elem(&device, &zero);

	/* Arrays of one entry always have it; a global function has to check its arguments. */
	if (!ticks || !device_state || !tick_bytes || shift > 63)
		return 0;

	__u32 now_tick = now_ns >> shift;
	struct line_state *state = &device_state->line;
	__u32 first = *(volatile __u32 *)&state->tick;
	__u32 passed = now_tick - first;

	if (__sync_val_compare_and_swap(&state->tick, first, now_tick) != first)
		return 0;

	struct closing closing = {
	    .ticks = ticks,
	    .leftover_ns = state->leftover_ns,
	    .idle_tick = state->idle_tick,
	    .demand = state->demand,
	    .tick_bytes = tick_bytes,
	    .shift = shift,
	};

	/* A change of the rate changes what a tick carries, or how long it is and so its number. */
	if (state->tick_bytes != tick_bytes || state->shift != shift) {
		if (state->tick_bytes)
			closing.demand = (__u64)closing.demand * tick_bytes / state->tick_bytes;
		if (state->shift != shift) {
			state->free_hint = now_tick;
			passed = 0;
		}
		state->tick_bytes = tick_bytes;
		state->shift = shift;
	}
	if (passed > CLOSE_TICKS)
		passed = CLOSE_TICKS;
	closing.tick = now_tick - passed;
	closing.start_ns = (now_ns >> shift << shift) - ((__u64)passed << shift);
	bpf_loop(passed, line_close_tick, &closing, 0);
	state->demand = closing.demand;
	state->leftover_ns = closing.leftover_ns;
	state->idle_tick = closing.idle_tick;

	__u32 floor = tick_bytes / LEFTOVER_FLOOR + 1;
	__u32 free = closing.demand + floor < tick_bytes ? tick_bytes - closing.demand : floor;
	state->leftover_ns_per_byte_q8 = (1ULL << shift << 8) / free;

	if (state->free_hint - now_tick >= CALENDAR_TICKS)
		state->free_hint = now_tick;
	return 0;
}

/* Closes the ticks before now, if that is still to do. */
static __always_inline void line_roll(const struct line_state *state, __u64 now, __u32 tick_bytes,
				      __u32 shift)
{
	__u32 closed = *(volatile __u32 *)&state->tick;

	/* Another CPU may be in the next tick already. Anything further off is no tick to come, but
	 * one of long ago, or of another length: numbers wrap, and change with it. */
	if (closed - (__u32)(now >> shift) >= CLOSE_TICKS || state->shift != shift)
		line_close(now, tick_bytes, shift);
}

static __always_inline __u32 later_tick(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0 ? a : b;
}

static __always_inline bool booked_below(const struct calendar *calendar, __u32 tick, __u32 bytes)
{
	__u64 word = calendar->ticks[bounded(tick, CALENDAR_TICKS)].stamp_and_bytes;

	return word >> 32 != tick || (__u32)word < bytes;
}

/* The first tick with room at or after one, as far as the probes go. A function of its own, so that
 * the verifier looks at its loops once and not once for each path that leads here.
 */
__noinline __u32 line_find_room(__u32 tick, __u32 tick_bytes)
{
	__u32 zero = 0;
	struct calendar *ticks = bpf_map_lookup_elem(&calendar, &zero);
	struct device_state *state = bpf_map_lookup_elem(&device, &zero);

	/* Arrays of one entry always have it. */
	if (!ticks || !state)
		return tick;

	for (int i = 0; i < NEAR_PROBES; i++) {
		if (booked_below(ticks, tick, tick_bytes))
			return tick;
		tick++;
	}
	__u32 hint = state->line.free_hint;
	for (int i = 0; i < HINT_PROBES; i++) {
		if (booked_below(ticks, hint, tick_bytes))
			break;
		hint++;
	}
	/* All CPUs read it, so it is written when it changes only. */
	if (hint != state->line.free_hint)
		state->line.free_hint = hint;
	tick = later_tick(tick, hint);
	for (int i = 0; i < FREE_PROBES; i++) {
		if (booked_below(ticks, tick, tick_bytes))
			break;
		tick++;
	}
	return tick;
}

struct repayment {
	struct calendar *ticks;
	__s64 debt;
	__u32 tick;
	__u32 tick_bytes;
	__u32 free_hint;
	__u32 pad;
};

static long line_repay_tick(__u32 index, struct repayment *repayment)
{
	__u32 tick = repayment->tick + index;
	__u64 word = repayment->ticks->ticks[bounded(tick, CALENDAR_TICKS)].stamp_and_bytes;
	__s64 room = repayment->tick_bytes;

	if (word >> 32 == tick)
		room -= (__u32)word;
	if (room > repayment->debt) {
		tick_book(repayment->ticks, tick, repayment->debt);
		repayment->debt = 0;
		return 1; /* ends the loop */
	}
	if (room > 0) {
		tick_book(repayment->ticks, tick, room);
		repayment->debt -= room;
	}
	if (repayment->free_hint == tick)
		repayment->free_hint++;
	return repayment->debt <= 0;
}

/* Adds what overfills a tick to the debt, and takes the debt from the ticks after it that have
 * room. A super-packet may be larger than many ticks: what they cannot repay yet, later packets
 * will. The hint follows over ticks that are full now, which may be more than a search looks over.
 */
static __noinline int line_repay(struct line *line, __u32 tick, __u32 overfill)
{
	__u32 hint = line->state->free_hint;
	struct repayment repayment = {
	    .ticks = line->calendar,
	    .debt = line->state->debt_bytes + overfill,
	    .tick = tick + 1,
	    .tick_bytes = line->tick_bytes,
	    .free_hint = hint,
	};
	__s64 owed = repayment.debt;

	if (hint == tick && !tick_has_room(line, tick))
		repayment.free_hint++;
	bpf_loop(REPAY_TICKS, line_repay_tick, &repayment, 0);
	__sync_fetch_and_add(&line->state->debt_bytes, overfill - (owed - repayment.debt));
	if (repayment.free_hint != hint)
		line->state->free_hint = repayment.free_hint;
	return 0;
}

static __always_inline __u64 tick_start(const struct line *line, __u32 tick)
{
	return (line->now >> line->shift << line->shift) +
	       ((__u64)(__s64)(__s32)(tick - line->tick) << line->shift);
}

/* Where a packet booked in a tick leaves: behind what is booked there. */
static __always_inline __u64 tick_place(struct line *line, __u32 tick)
{
	__u32 booked = tick_booked(line, tick);
	__u64 last = (1ULL << line->shift) - 1;

	if (tick == line->tick) {
		__u32 gone = tick_gone(line);

		booked = booked > gone ? booked : gone;
	}
	return tick_start(line, tick) + earlier_ns(cost_ns(booked, line->ns_per_byte_q24), last);
}

/* Bytes that the line has booked from now to the end of the next tick. */
static __always_inline __u32 line_ahead(struct line *line)
{
	__u32 gone = tick_gone(line);
	__u32 booked = tick_booked(line, line->tick);

	return (booked > gone ? booked - gone : 0) + tick_booked(line, line->tick + 1);
}

/* Boosts take a BOOST_PART of the line: one waits for the ones before to be paid for. A small one
 * may come beside a full one.
 */
static __always_inline bool boost_fits(const struct line_state *state,
				       const struct booking_request *request)
{
	__u64 slack = 0;

	if (request->bytes > request->full_packet_bytes)
		return false;
	if (request->bytes < request->full_packet_bytes / SMALL_PART)
		slack = BOOST_PART * cost_ns(request->full_packet_bytes, request->ns_per_byte_q24);
	return state->boost_ns <= request->now + slack;
}

/* Finds the departure of a packet that need not wait. */
static __always_inline bool line_boosts(const struct line_state *state,
					struct booking_request *request)
{
	if (request->waits || !boost_fits(state, request))
		return false;
	request->departure = request->now;
	request->tick = request->now >> request->shift;
	request->booking = BOOKED_AS_BOOST;
	return true;
}

/* Of a packet that the leftover serves so much earlier than the guarantee would: the bytes that the
 * guarantee would have served meanwhile.
 */
static __always_inline __u32 unserved_bytes(__u32 bytes, __u64 cost, __u64 gained)
{
	return gained < cost ? bytes * (cost - gained) / cost : 0;
}

static __always_inline void line_place(struct line *line, struct booking_request *request,
				       __u32 tick)
{
	request->tick = tick;
	request->departure = later_ns(tick_place(line, tick), request->earliest);
}

/* Finds when a packet may leave that is no boost. */
__noinline int line_find(struct booking_request *request)
{
	struct line line;

	if (!request || !line_open(&line, request))
		return 0;

	request->booking = BOOKED_BY_GUARANTEE;
	request->leftover_ns = 0;

	__u64 allowed = later_ns(request->leftover_earliest, request->earliest);
	__u64 reach =
	    later_ns(SHALLOW_PACKETS * request->guarantee_cost, (__u64)SHALLOW_TICKS << line.shift);
	bool shallow = request->earliest < line.now + reach;

	/* Use it or lose it: what the line has no other use for now is nobody's loss. */
	__u32 largest = request->bytes > request->full_packet_bytes ? request->bytes
								    : request->full_packet_bytes;
	if (shallow && line_ahead(&line) <= NEAR_PACKETS * largest) {
		line_place(&line, request, line_find_room(allowed >> line.shift, line.tick_bytes));
		if (request->departure + request->guarantee_cost < request->guarantee) {
			request->booking = BOOKED_FROM_LEFTOVER;
			request->guarantee = request->departure;
		}
		return 0;
	}

	/* Behind what was booked from the leftover before, unless the guarantee comes first. A flow
	 * that has not booked far ahead may be a packet, or a tick, ahead of its guarantee: so
	 * those that send a packet when another leaves, as TCP does, fill the line without gaps. */
	__u32 entitled = later_ns(request->guarantee, request->earliest) >> line.shift;
	__u64 leftover = allowed;
	/* Where one tin has the line to itself and the line has idled of late, what guarantees
	 * leave is the tin's own, and a flow that has not booked far ahead may have it at once. */
	bool at_once =
	    shallow && request->alone && line.tick - line.state->idle_tick <= IDLE_MEMORY_TICKS;
	if (!at_once)
		leftover = later_ns(line.state->leftover_ns, leftover);
	__u64 from = request->guarantee;
	if (shallow) {
		__u64 lead = later_ns(request->guarantee_cost, 1ULL << line.shift);

		from = later_ns(from > lead ? from - lead : 0, allowed);
	}
	__u64 first = earlier_ns(leftover, from);
	__u32 tick = entitled;
	if (first < request->guarantee)
		tick = line_find_room(first >> line.shift, line.tick_bytes);
	if (first >= request->guarantee || (__s32)(entitled - tick) < 0) {
		tick = line_find_room(entitled, line.tick_bytes);
	} else if (leftover < from) {
		leftover = later_ns(leftover, tick_start(&line, tick));
		request->booking = BOOKED_FROM_LEFTOVER;
		if (leftover < request->guarantee) {
			request->unserved = unserved_bytes(request->bytes, request->guarantee_cost,
							   request->guarantee - leftover);
			request->guarantee = leftover;
		}
		if (!at_once)
			request->leftover_ns =
			    leftover + (request->bytes * line.state->leftover_ns_per_byte_q8 >> 8);
	}
	line_place(&line, request, tick);
	return 0;
}

/* How much later than its guarantee allows a packet leaves, beyond what ticks round and what its
 * flow can make up for: the time of one such packet.
 */
static __always_inline __u64 late_ns(const struct booking_request *request, __u64 own_pacing)
{
	if (request->departure <= request->guarantee) /* as most do */
		return 0;

	__u64 due = later_ns(request->guarantee, own_pacing) +
		    ((__u64)LAG_TICKS << request->shift) + request->guarantee_cost;

	return request->departure > due ? request->departure - due : 0;
}

/* Half of what a flow can send by its guarantee in the time that it lost of it, at most a tick. */
static __always_inline __u32 lost_bytes(const struct booking_request *request, __u64 lost_ns)
{
	__u64 bytes;

	if (!lost_ns || !request->guarantee_cost)
		return 0;
	bytes = lost_ns * request->bytes / (2 * request->guarantee_cost);
	return bytes < request->tick_bytes ? bytes : request->tick_bytes;
}

/* Gives back what is left of a lease, unless its tick is over. */
static __always_inline void line_return_lease(struct line *line, const struct lease *lease)
{
	struct tick *at = tick_at(line, lease->tick);

	if (!lease->bytes || (__s32)(lease->tick - line->tick) < 0 ||
	    *(volatile __u64 *)&at->stamp_and_bytes >> 32 != lease->tick)
		return;
	__sync_fetch_and_add(&at->stamp_and_bytes, -(__u64)lease->bytes);
	if (lease->booking != BOOKED_FROM_LEFTOVER)
		__sync_fetch_and_add(&at->entitled, -lease->bytes);
}

/* Books what line_find found. What a flow would have got by its guarantee is demand whether it got
 * it so or not: otherwise flows that are pushed aside would seem to want no more than they get, and
 * those that push would take that for leftover.
 */
__noinline int line_book(struct booking_request *request)
{
	struct line line;

	if (!request)
		return 0;

	/* What moves a clock as well is booked each on its own. */
	struct lease *lease = NULL;
	if (request->lease_bytes && !request->unserved && !request->leftover_ns)
		lease = lease_of_cpu();

	__u32 bytes = request->bytes;
	if (lease)
		bytes = lease_pay(lease, request->tick, request->booking, bytes);
	if (!bytes || !line_open(&line, request))
		return 0;

	struct tick *at = tick_at(&line, request->tick);
	__u32 booked = tick_booked(&line, request->tick);
	__u32 lost = 0;

	if (request->tick == line.tick) {
		__u32 gone = tick_gone(&line);

		/* What time has passed unused cannot be used any more. */
		lost = gone > booked ? gone - booked : 0;
	}
	booked += lost;
	__u32 ahead = 0;
	if (lease) {
		__u32 full = booked + bytes;

		if (!lease_is_for(lease, request->tick, request->booking)) {
			line_return_lease(&line, lease);
			lease_restart(lease, request->tick, request->booking);
		}
		ahead = lease_extend(lease, bytes, request->lease_bytes,
				     full < line.tick_bytes ? line.tick_bytes - full : 0);
	}
	tick_book(line.calendar, request->tick, bytes + lost + ahead);
	if (lost)
		__sync_fetch_and_add(&at->lost, lost);

	__u32 entitled = request->unserved;
	if (request->booking != BOOKED_FROM_LEFTOVER)
		entitled += bytes + ahead;
	else if (request->leftover_ns)
		line.state->leftover_ns = request->leftover_ns;
	if (entitled)
		__sync_fetch_and_add(&at->entitled, entitled);
	/* Two CPUs at the same time may pay once: boosts are bounded, not exact. */
	if (request->booking == BOOKED_AS_BOOST)
		line.state->boost_ns = later_ns(line.state->boost_ns, line.now) +
				       BOOST_PART * cost_ns(bytes + ahead, line.ns_per_byte_q24);

	__u32 limit = booked > line.tick_bytes ? booked : line.tick_bytes;
	__u32 overfill = booked + bytes > limit ? booked + bytes - limit : 0;
	if (overfill || line.state->debt_bytes > 0)
		line_repay(&line, request->tick, overfill);
	return 0;
}

#endif
