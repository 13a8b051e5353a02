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

/* Probes for a free tick. What is not found within them is booked at the last one. */
#define NEAR_PROBES 2
#define FREE_PROBES 4
#define HINT_PROBES 4

/* Ticks that one packet asks to repay what is overfilled. */
#define REPAY_TICKS 32

/* Ticks that are closed at once. After a longer silence the ones before count for nothing. */
#define CLOSE_TICKS 16

/* The smoothing of demand: a tick counts for 1/64. */
#define DEMAND_SHIFT 6

/* A byte of the line that stays idle says so much of what guarantees do not use. */
#define IDLE_WEIGHT 2

/* The part of the line that leftover bookings may always have, and that a tick gives to boosts. */
#define LEFTOVER_FLOOR 128
#define BOOST_PART     4

/* Ticks by which a departure may miss its guarantee before that counts as lost. */
#define LAG_TICKS 2

struct line {
	struct calendar *calendar;
	struct line_state *state;
	__u32 shift;
	__u32 tick_bytes;
	__u32 full_packet_bytes;
	__u64 ns_per_byte_q24;
	__u64 now;
	__u32 tick; /* that of now */
};

static __always_inline struct tick *tick_at(struct line *line, __u32 tick)
{
	return &line->calendar->ticks[bounded(tick, CALENDAR_TICKS)];
}

/* Bytes booked in a tick; in the present one, what time has passed is gone too. */
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
			at->boosted = 0;
			return;
		}
	}
	__sync_fetch_and_add(&at->stamp_and_bytes, bytes);
}

/* A moving average that also moves for differences too small to be divided. */
static __always_inline __s64 smoothed(__s64 average, __s64 sample)
{
	__s64 difference = sample - average;

	if (difference > 0 && difference < 1 << DEMAND_SHIFT)
		return average + 1;
	if (difference < 0 && -difference < 1 << DEMAND_SHIFT)
		return average - 1;
	return average + (difference >> DEMAND_SHIFT);
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
	__u32 tick = first;
	__s64 demand = state->demand;

	if (__sync_val_compare_and_swap(&state->tick, first, now_tick) != first)
		return 0;
	/* A change of the rate changes what a tick carries, or how long it is and so its number. */
	if (state->tick_bytes != tick_bytes || state->shift != shift) {
		if (state->tick_bytes)
			demand = (__u64)demand * tick_bytes / state->tick_bytes;
		if (state->shift != shift) {
			state->free_hint = now_tick;
			tick = now_tick;
		}
		state->tick_bytes = tick_bytes;
		state->shift = shift;
	}
	__u64 leftover_ns = state->leftover_ns;
	for (int i = 0; i < CLOSE_TICKS; i++) {
		if (tick == now_tick)
			break;
		struct tick *at = &ticks->ticks[bounded(tick, CALENDAR_TICKS)];
		__u64 word = at->stamp_and_bytes;
		__u32 booked = word >> 32 == tick ? (__u32)word : 0;
		__s64 entitled = booked ? at->entitled : 0;

		if (entitled > 4LL * tick_bytes)
			entitled = 4LL * tick_bytes;
		tick++;
		if (booked < tick_bytes) {
			__u64 end =
			    (now_ns >> shift << shift) - ((__u64)(now_tick - tick) << shift);
			__u32 idle = tick_bytes - booked;

			entitled -= (__s64)IDLE_WEIGHT * idle;
			/* The line has idled: what waits for the leftover may come nearer. */
			if (leftover_ns > end)
				leftover_ns -= (leftover_ns - end) / tick_bytes * idle;
		}
		demand = smoothed(demand, entitled > 0 ? entitled : 0);
	}
	state->demand = demand;
	state->leftover_ns = leftover_ns;

	__u32 floor = tick_bytes / LEFTOVER_FLOOR + 1;
	__u32 free = demand + floor < tick_bytes ? tick_bytes - demand : floor;
	state->leftover_ns_per_byte_q8 = (1ULL << shift << 8) / (free + free / 16);

	if (state->free_hint - now_tick >= CALENDAR_TICKS)
		state->free_hint = now_tick;
	return 0;
}

static __always_inline void line_roll(struct line *line)
{
	__u32 closed = *(volatile __u32 *)&line->state->tick;

	/* Another CPU may be in the next tick already. Anything further off is no tick to come, but
	 * one of long ago, or of another length: numbers wrap, and change with it. */
	if (closed - line->tick >= CLOSE_TICKS || line->state->shift != line->shift)
		line_close(line->now, line->tick_bytes, line->shift);
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
	__u32 tick;
	__u32 tick_bytes;
	__s64 debt;
};

static long line_repay_tick(__u32 index, struct repayment *repayment)
{
	__u32 tick = repayment->tick + index;
	__u64 word = repayment->ticks->ticks[bounded(tick, CALENDAR_TICKS)].stamp_and_bytes;
	__s64 room = repayment->tick_bytes;

	if (word >> 32 == tick)
		room -= (__u32)word;
	if (room > repayment->debt)
		room = repayment->debt;
	if (room > 0) {
		tick_book(repayment->ticks, tick, room);
		repayment->debt -= room;
	}
	return repayment->debt <= 0; /* 1 ends the loop */
}

/* Adds what overfills a tick to the debt, and takes the debt from the ticks after it that have
 * room. A super-packet may be larger than many ticks: what they cannot repay yet, later packets
 * will.
 */
static __noinline int line_repay(struct line *line, __u32 tick, __u32 overfill)
{
	struct repayment repayment = {
	    .ticks = line->calendar,
	    .tick = tick,
	    .tick_bytes = line->tick_bytes,
	    .debt = line->state->debt_bytes + overfill,
	};
	__s64 owed = repayment.debt;

	bpf_loop(REPAY_TICKS, line_repay_tick, &repayment, 0);
	__sync_fetch_and_add(&line->state->debt_bytes, overfill - (owed - repayment.debt));
	return 0;
}

enum booking {
	BOOKED_BY_GUARANTEE,
	BOOKED_FROM_LEFTOVER,
	BOOKED_AS_BOOST,
};

struct departure {
	__u64 time;
	__u32 tick;
	enum booking booking;
	/* Where the flow's guarantee stands for this packet. */
	__u64 guarantee;
	/* With a leftover booking out of turn: where the leftover stands after it. */
	__u64 leftover_ns;
};

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

static __always_inline bool boost_fits(struct line *line, __u32 bytes)
{
	__u32 boosted = tick_booked(line, line->tick) ? tick_at(line, line->tick)->boosted : 0;
	__u32 budget = line->tick_bytes / BOOST_PART;
	__u32 full = line->full_packet_bytes;

	return bytes <= full && boosted + bytes <= (budget > full ? budget : full);
}

/* When a packet may leave. guarantee: when its flow's guarantee lets it; earliest: the flow's last
 * departure, or now; leftover_earliest: the same for what is no guarantee of its tin's; backlogged:
 * whether the flow has packets waiting or is ahead of its guarantee.
 */
static __always_inline struct departure line_find(struct line *line, __u64 guarantee,
						  __u64 earliest, __u64 leftover_earliest,
						  bool backlogged, __u32 bytes)
{
	struct departure d = {.guarantee = guarantee};

	if (!backlogged && boost_fits(line, bytes)) {
		d.time = line->now;
		d.tick = line->tick;
		d.booking = BOOKED_AS_BOOST;
		return d;
	}
	leftover_earliest = later_ns(leftover_earliest, earliest);

	/* Use it or lose it: room in this tick or the next is nobody's loss. */
	d.tick = leftover_earliest >> line->shift;
	if (d.tick == line->tick && !tick_has_room(line, d.tick))
		d.tick++;
	if ((__s32)(d.tick - line->tick) <= 1 && tick_has_room(line, d.tick)) {
		d.time = later_ns(tick_place(line, d.tick), earliest);
		if (d.time < guarantee) {
			d.booking = BOOKED_FROM_LEFTOVER;
			d.guarantee = d.time;
		}
		return d;
	}

	/* Behind what was booked from the leftover before, unless the guarantee comes first. */
	__u32 entitled = later_ns(guarantee, earliest) >> line->shift;
	__u64 leftover = later_ns(line->state->leftover_ns, leftover_earliest);
	if (leftover < guarantee) {
		d.tick = line_find_room(leftover >> line->shift, line->tick_bytes);
		if ((__s32)(entitled - d.tick) >= 0) {
			leftover = later_ns(leftover, tick_start(line, d.tick));
			d.booking = BOOKED_FROM_LEFTOVER;
			d.guarantee = earlier_ns(guarantee, leftover);
			d.leftover_ns =
			    leftover + (bytes * line->state->leftover_ns_per_byte_q8 >> 8);
			d.time = later_ns(tick_place(line, d.tick), earliest);
			return d;
		}
	}
	d.tick = line_find_room(entitled, line->tick_bytes);
	d.time = later_ns(tick_place(line, d.tick), earliest);
	return d;
}

/* How much later than its guarantee allows a packet leaves, beyond what ticks round. */
static __always_inline __u64 departure_late(const struct line *line, const struct departure *d,
					    __u64 own_pacing)
{
	__u64 due = later_ns(d->guarantee, own_pacing) + ((__u64)LAG_TICKS << line->shift);

	return d->time > due ? d->time - due : 0;
}

/* Books what line_find found. Of what the flow lost of its guarantee, half is added to the demand,
 * so that more is kept free for it.
 */
static __always_inline void line_book(struct line *line, const struct departure *d, __u32 bytes,
				      __u64 late, __u64 guarantee_cost)
{
	struct tick *at = tick_at(line, d->tick);
	__u32 booked = tick_booked(line, d->tick);
	__u32 lost = 0;

	if (d->tick == line->tick) {
		__u32 gone = tick_gone(line);

		/* What time has passed unused cannot be used any more. */
		lost = gone > booked ? gone - booked : 0;
	}
	tick_book(line->calendar, d->tick, bytes + lost);
	booked += lost;

	if (d->booking == BOOKED_FROM_LEFTOVER) {
		if (d->leftover_ns)
			line->state->leftover_ns = d->leftover_ns;
	} else {
		__u64 missed = late && guarantee_cost ? late * bytes / (2 * guarantee_cost) : 0;

		__sync_fetch_and_add(
		    &at->entitled, bytes + (missed < line->tick_bytes ? missed : line->tick_bytes));
	}
	if (d->booking == BOOKED_AS_BOOST)
		__sync_fetch_and_add(&at->boosted, bytes);

	__u32 already = booked > line->tick_bytes ? booked - line->tick_bytes : 0;
	__u32 after = booked + bytes > line->tick_bytes ? booked + bytes - line->tick_bytes : 0;
	if (after > already || line->state->debt_bytes > 0)
		line_repay(line, d->tick + 1, after - already);
}

#endif
