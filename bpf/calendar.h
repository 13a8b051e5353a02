// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The calendar of the line: how many bytes are booked to leave in each tick of time.
 *
 * A clock knows how much is booked in all; the calendar knows when it leaves. So no tick is sold
 * twice, whatever the flow counts say, and a flow that wants more than its guarantee finds the
 * ticks that the others leave free. Beside lumps there is an exception: see line_is_due.
 *
 * A tick is a power of two of nanoseconds, 1 ms or longer, and holds what the bandwidth carries in
 * that time. Ticks live in a ring; each is stamped with its number, so that a tick of an earlier
 * round counts as empty and need not be cleared.
 */
#ifndef CAKECTL_CALENDAR_H
#define CAKECTL_CALENDAR_H

#include "clock.h"
#include "lease.h"

/* Probes for a free tick; FAR_PROBES are those behind lumps. What is not found within them is
 * booked at the last one.
 */
#define NEAR_PROBES 2
#define FREE_PROBES 4
#define HINT_PROBES 4
#define FAR_PROBES  64

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

/* A lump is a packet of more full packets than this, and of more than this part of a tick: larger
 * than the cap on super-packets allows.
 */
#define LUMP_PACKETS 2
#define LUMP_PART    4

/* What a guarantee overfills for being due is repaid within so many ticks. */
#define DUE_TICKS 128

enum booking {
	BOOKED_BY_GUARANTEE,
	BOOKED_FROM_LEFTOVER,
	BOOKED_AS_BOOST,
};

/* One packet's way through the calendar: what is asked, and what is found. */
struct booking_request {
	__u64 now;
	/* When the flow's guarantee lets the packet leave; what was booked from the leftover moves
	 * it. */
	__u64 guarantee;
	/* The flow's last departure, or now. */
	__u64 earliest;
	/* The same for what is no guarantee of its tin's. */
	__u64 leftover_earliest;
	__u64 guarantee_cost;
	/* The length of a tick, and what it carries: as the configuration had them when the packet
	 * came. */
	__u32 shift;
	__u32 tick_bytes;
	/* The tick of now, and the bytes that time has passed over in it. */
	__u32 present;
	__u32 gone;
	__u32 bytes;
	__u32 tin;

	/* The tick of the departure, and when in it. */
	__u32 tick;
	__u64 departure;
	/* Bytes that the flow would have got by its guarantee, beside those booked by it. */
	__u32 unserved;
	/* With a leftover booking out of turn: where the leftover stands after it. */
	__u64 leftover_ns;
	enum booking booking;
};

static __always_inline struct tick *tick_at(__u32 tick)
{
	return &line_calendar.ticks[bounded(tick, CALENDAR_TICKS)];
}

/* Bytes booked in a tick, found at its place. How much of the present one has passed is another
 * matter.
 */
static __always_inline __u32 booked_at(const struct tick *at, __u32 tick)
{
	__u64 word = *(volatile __u64 *)&at->stamp_and_bytes;

	return word >> 32 == tick ? (__u32)word : 0;
}

static __always_inline __u32 tick_booked(__u32 tick)
{
	return booked_at(tick_at(tick), tick);
}

/* Books bytes in a tick. Whoever is the first to use a tick of a new round clears its tallies; what
 * another CPU adds to those at that very moment is lost to the estimates, never to the line.
 */
static __always_inline void tick_book(struct tick *at, __u32 tick, __u32 bytes)
{
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
	struct tick *at = tick_at(tick);
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
	struct line_state *state = &device.line;

	/* A global function has to check its arguments. */
	if (!tick_bytes || shift > 63)
		return 0;

	__u32 now_tick = now_ns >> shift;
	__u32 first = *(volatile __u32 *)&state->tick;
	__u32 passed = now_tick - first;

	if (__sync_val_compare_and_swap(&state->tick, first, now_tick) != first)
		return 0;

	struct closing closing = {
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
			state->lump_end = now_tick;
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
	if (state->lump_end - now_tick >= CALENDAR_TICKS)
		state->lump_end = now_tick;
	return 0;
}

/* Says when in which tick a request comes, and closes the ticks before, if that is still to do. */
static __always_inline void line_arrive(struct booking_request *request)
{
	__u64 passed = request->now & ((1ULL << request->shift) - 1);

	request->present = request->now >> request->shift;
	request->gone = passed * request->tick_bytes >> request->shift;

	__u32 closed = *(volatile __u32 *)&device.line.tick;

	/* Another CPU may be in the next tick already. Anything further off is no tick to come, but
	 * one of long ago, or of another length: numbers wrap, and change with it. */
	if (closed - request->present >= CLOSE_TICKS || device.line.shift != request->shift)
		line_close(request->now, request->tick_bytes, request->shift);
}

static __always_inline __u32 later_tick(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0 ? a : b;
}

struct far_search {
	__u32 tick;
	__u32 tick_bytes;
};

static long line_probe(__u32 index, struct far_search *search)
{
	if (tick_booked(search->tick) < search->tick_bytes)
		return 1; /* ends the loop */
	search->tick++;
	return 0;
}

/* The first tick with room at or after one, as far as the probes go. A function of its own, so that
 * the verifier looks at its loops once and not once for each path that leads here.
 */
__noinline __u32 line_find_room(__u32 tick, __u32 tick_bytes)
{
	for (int i = 0; i < NEAR_PROBES; i++) {
		if (tick_booked(tick) < tick_bytes)
			return tick;
		tick++;
	}
	__u32 hint = device.line.free_hint;
	for (int i = 0; i < HINT_PROBES; i++) {
		if (tick_booked(hint) < tick_bytes)
			break;
		hint++;
	}
	/* All CPUs read it, so it is written when it changes only. */
	if (hint != device.line.free_hint)
		device.line.free_hint = hint;
	tick = later_tick(tick, hint);
	for (int i = 0; i < FREE_PROBES; i++) {
		if (tick_booked(tick) < tick_bytes)
			return tick;
		tick++;
	}
	struct far_search search = {.tick = tick, .tick_bytes = tick_bytes};

	bpf_loop(FAR_PROBES, line_probe, &search, 0);
	return search.tick;
}

struct repayment {
	__s64 debt;
	__u32 tick;
	__u32 tick_bytes;
	__u32 free_hint;
};

static long line_repay_tick(__u32 index, struct repayment *repayment)
{
	__u32 tick = repayment->tick + index;
	struct tick *at = tick_at(tick);
	__s64 room = (__s64)repayment->tick_bytes - booked_at(at, tick);

	/* Two CPUs may have repaid the same. */
	if (repayment->debt <= 0)
		return 1; /* ends the loop */
	if (room > repayment->debt) {
		tick_book(at, tick, repayment->debt);
		repayment->debt = 0;
		return 1;
	}
	if (room > 0) {
		tick_book(at, tick, room);
		repayment->debt -= room;
	}
	if (repayment->free_hint == tick)
		repayment->free_hint++;
	return repayment->debt <= 0;
}

/* Adds what overfills a tick to the debt, and takes the debt from the ticks after it that have
 * room. A super-packet may be larger than many ticks: what they cannot repay yet, later packets
 * will. The hint follows over ticks that are full now, which may be more than a search looks over.
 * Returns the tick after the last one that was asked.
 */
static __noinline __u32 line_repay(__u32 tick, __u32 tick_bytes, __u32 overfill)
{
	struct line_state *state = &device.line;
	__u32 hint = state->free_hint;
	struct repayment repayment = {
	    .debt = state->debt_bytes + overfill,
	    .tick = tick + 1,
	    .tick_bytes = tick_bytes,
	    .free_hint = hint,
	};
	__s64 owed = repayment.debt;

	if (hint == tick && tick_booked(tick) >= tick_bytes)
		repayment.free_hint++;
	__u32 asked = bpf_loop(REPAY_TICKS, line_repay_tick, &repayment, 0);

	__sync_fetch_and_add(&state->debt_bytes, overfill - (owed - repayment.debt));
	if (repayment.free_hint != hint)
		state->free_hint = repayment.free_hint;
	return tick + 1 + asked;
}

static __always_inline __u64 tick_start(const struct booking_request *request, __u32 tick)
{
	return (request->now >> request->shift << request->shift) +
	       ((__u64)(__s64)(__s32)(tick - request->present) << request->shift);
}

/* Where a packet booked in a tick leaves: behind what is booked there. */
static __always_inline __u64 tick_place(const struct booking_request *request, __u32 tick)
{
	__u32 booked = tick_booked(tick);
	__u64 last = (1ULL << request->shift) - 1;

	if (tick == request->present && booked < request->gone)
		booked = request->gone;
	return tick_start(request, tick) +
	       earlier_ns(cost_ns(booked, config.bandwidth_ns_per_byte_q24), last);
}

/* Bytes that the line has booked from now to the end of the next tick. */
static __always_inline __u32 line_ahead(const struct booking_request *request)
{
	__u32 booked = tick_booked(request->present);

	return (booked > request->gone ? booked - request->gone : 0) +
	       tick_booked(request->present + 1);
}

/* Boosts take a BOOST_PART of the line: one waits for the ones before to be paid for. A small one
 * may come beside a full one.
 */
static __always_inline bool boost_fits(const struct booking_request *request)
{
	__u64 slack = 0;

	if (request->bytes > config.full_packet_bytes)
		return false;
	if (request->bytes < config.full_packet_bytes / SMALL_PART)
		slack = BOOST_PART *
			cost_ns(config.full_packet_bytes, config.bandwidth_ns_per_byte_q24);
	return device.line.boost_ns <= request->now + slack;
}

/* Finds the departure of a packet whose flow has nothing waiting and is not ahead of its guarantee,
 * if it need not wait.
 */
static __always_inline bool line_boosts(struct booking_request *request)
{
	if (!boost_fits(request))
		return false;
	request->departure = request->now;
	request->tick = request->present;
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

static __always_inline void line_place(struct booking_request *request, __u32 tick)
{
	request->tick = tick;
	request->departure = later_ns(tick_place(request, tick), request->earliest);
}

/* Whether no other tin has active flows. */
static __always_inline bool tin_is_alone(__u32 tin)
{
	return device.tins[bounded(tin, MAX_TINS)].flows >= device.flows;
}

static __always_inline __u32 lump_bytes(__u32 tick_bytes)
{
	return later_ns(LUMP_PACKETS * config.full_packet_bytes, tick_bytes / LUMP_PART);
}

/* Whether a guarantee that is due in a full tick is booked there: where lumps fill it, or a flow
 * that keeps to the cap would have to wait for all that those who do not have taken at once. Ticks
 * after them repay, while they can: and soon, so not where the first tick with room is far off.
 */
static __always_inline bool line_is_due(const struct booking_request *request, __u32 tick,
					__u32 room)
{
	const struct line_state *state = &device.line;

	return (__s32)(tick - state->lump_end) < 0 && (__s32)(room - tick) <= DUE_TICKS &&
	       request->bytes <= lump_bytes(request->tick_bytes) &&
	       state->debt_bytes < (__s64)REPAY_TICKS * request->tick_bytes;
}

/* Finds when a packet may leave that is no boost. A function of its own, so that the verifier looks
 * at it once and not for every path that leads to it.
 */
__noinline int line_find(struct booking_request *request)
{
	const struct line_state *state = &device.line;

	/* A global function has to check its arguments. */
	if (!request)
		return 0;

	request->booking = BOOKED_BY_GUARANTEE;
	request->leftover_ns = 0;

	__u64 allowed = later_ns(request->leftover_earliest, request->earliest);
	__u64 reach = later_ns(SHALLOW_PACKETS * request->guarantee_cost,
			       (__u64)SHALLOW_TICKS << request->shift);
	bool shallow = request->earliest < request->now + reach;

	/* Use it or lose it: what the line has no other use for now is nobody's loss. */
	__u32 largest = earlier_ns(later_ns(request->bytes, config.full_packet_bytes),
				   lump_bytes(request->tick_bytes));
	if (shallow && line_ahead(request) <= NEAR_PACKETS * largest) {
		line_place(request, line_find_room(allowed >> request->shift, request->tick_bytes));
		if (request->departure + request->guarantee_cost < request->guarantee) {
			request->booking = BOOKED_FROM_LEFTOVER;
			request->guarantee = request->departure;
		}
		return 0;
	}

	/* Behind what was booked from the leftover before, unless the guarantee comes first. A flow
	 * that has not booked far ahead may be a packet, or a tick, ahead of its guarantee: so
	 * those that send a packet when another leaves, as TCP does, fill the line without gaps. */
	__u32 entitled = later_ns(request->guarantee, request->earliest) >> request->shift;
	__u64 leftover = allowed;
	/* Where one tin has the line to itself and the line has idled of late, what guarantees
	 * leave is the tin's own, and a flow that has not booked far ahead may have it at once. */
	bool at_once = shallow && tin_is_alone(request->tin) &&
		       request->present - state->idle_tick <= IDLE_MEMORY_TICKS;
	if (!at_once)
		leftover = later_ns(state->leftover_ns, leftover);
	__u64 from = request->guarantee;
	if (shallow) {
		__u64 lead = later_ns(request->guarantee_cost, 1ULL << request->shift);

		from = later_ns(from > lead ? from - lead : 0, allowed);
	}
	__u64 first = earlier_ns(leftover, from);
	__u32 tick = entitled;
	if (first < request->guarantee)
		tick = line_find_room(first >> request->shift, request->tick_bytes);
	if (first >= request->guarantee || (__s32)(entitled - tick) < 0) {
		__u32 due = later_ns(from, request->earliest) >> request->shift;

		tick = line_find_room(entitled, request->tick_bytes);
		if (line_is_due(request, due, tick))
			tick = due;
	} else if (leftover < from) {
		leftover = later_ns(leftover, tick_start(request, tick));
		request->booking = BOOKED_FROM_LEFTOVER;
		if (leftover < request->guarantee) {
			request->unserved = unserved_bytes(request->bytes, request->guarantee_cost,
							   request->guarantee - leftover);
			request->guarantee = leftover;
		}
		if (!at_once)
			request->leftover_ns =
			    leftover + (request->bytes * state->leftover_ns_per_byte_q8 >> 8);
	}
	line_place(request, tick);
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
static __always_inline void line_return_lease(const struct lease *lease, __u32 present)
{
	struct tick *at = tick_at(lease->tick);

	if (!lease->bytes || (__s32)(lease->tick - present) < 0 ||
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
static __always_inline void line_book(const struct booking_request *request)
{
	struct line_state *state = &device.line;

	/* What moves a clock as well is booked each on its own. */
	struct lease *lease = NULL;
	if (config.lease_bytes && !request->unserved && !request->leftover_ns)
		lease = lease_of_cpu();

	__u32 bytes = request->bytes;
	if (lease)
		bytes = lease_pay(lease, request->tick, request->booking, bytes);
	if (!bytes)
		return;

	struct tick *at = tick_at(request->tick);
	__u32 booked = booked_at(at, request->tick);
	__u32 lost = 0;

	/* What time has passed unused cannot be used any more. */
	if (request->tick == request->present && booked < request->gone)
		lost = request->gone - booked;
	booked += lost;
	__u32 ahead = 0;
	if (lease) {
		__u32 full = booked + bytes;

		if (!lease_is_for(lease, request->tick, request->booking)) {
			line_return_lease(lease, request->present);
			lease_restart(lease, request->tick, request->booking);
		}
		ahead = lease_extend(lease, bytes, config.lease_bytes,
				     full < request->tick_bytes ? request->tick_bytes - full : 0);
	}
	tick_book(at, request->tick, bytes + lost + ahead);
	if (lost)
		__sync_fetch_and_add(&at->lost, lost);

	__u32 entitled = request->unserved;
	if (request->booking != BOOKED_FROM_LEFTOVER)
		entitled += bytes + ahead;
	else if (request->leftover_ns)
		state->leftover_ns = request->leftover_ns;
	if (entitled)
		__sync_fetch_and_add(&at->entitled, entitled);
	/* Two CPUs at the same time may pay once: boosts are bounded, not exact. */
	if (request->booking == BOOKED_AS_BOOST)
		state->boost_ns =
		    later_ns(state->boost_ns, request->now) +
		    BOOST_PART * cost_ns(bytes + ahead, config.bandwidth_ns_per_byte_q24);

	__u32 overfill = 0, end = request->tick + 1;
	if (booked + bytes > request->tick_bytes)
		overfill =
		    booked < request->tick_bytes ? booked + bytes - request->tick_bytes : bytes;
	if (overfill || state->debt_bytes > 0)
		end = line_repay(request->tick, request->tick_bytes, overfill);
	if (request->bytes > lump_bytes(request->tick_bytes))
		state->lump_end = later_tick(state->lump_end, end);
}

#endif
