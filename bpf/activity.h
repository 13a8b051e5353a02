// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Telling the controller what changed, and finding what went idle. */
#ifndef CAKECTL_ACTIVITY_H
#define CAKECTL_ACTIVITY_H

#include <linux/time.h>

#include "flow.h"

/* A flow count rounded down to the steps that are worth telling: each up to 16, then eighths of a
 * power of two. A share computed for a step is off by at most an eighth.
 */
static __always_inline __u32 flow_step(__u32 flows)
{
	__u32 shift = 0;

	for (int i = 0; i < 16; i++) {
		if (flows >> shift < 16)
			break;
		shift++;
	}
	return flows >> shift << shift;
}

static __always_inline void event_send(enum event_kind kind, __u32 queue, __u32 tin, __u32 flows,
				       __u64 now)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&device.events_lost, 1);
		return;
	}
	event->time_ns = now;
	event->queue = queue;
	event->flows = flows;
	event->tin = tin;
	event->kind = kind;
	bpf_ringbuf_submit(event, 0);
}

struct sweep {
	__u64 now;
	__u64 hold_ns;
};

/* A shard whose last packet left long ago is idle: no flow of it counts any more. */
static long sweep_shard(void *map, __u32 *key, struct shard *shard, struct sweep *sweep)
{
	if (!shard->active ||
	    (__s64)(sweep->now - shard->busy_until_ns) < (__s64)(2 * sweep->hold_ns))
		return 0;
	shard_roll(shard, *key);
	shard->flows_reported = 0;
	shard->active = 0;
	__sync_fetch_and_add(&device.active_shards, -1);
	event_send(EVENT_IDLE, *key / MAX_TINS, *key % MAX_TINS, 0, sweep->now);
	return 0;
}

static __always_inline void sweep_shards(__u64 now, __u64 epoch_ns)
{
	struct sweep sweep = {
	    .now = now,
	    .hold_ns = FLOW_HOLD_EPOCHS * epoch_ns,
	};

	epoch_roll(now, epoch_ns);
	bpf_for_each_map_elem(&shards, sweep_shard, &sweep, 0);
}

/* Runs now and then while anything is active, then stops: the next packet starts it again. */
static int sweep_run(void *map, __u32 *key, struct sweeper *sweeper)
{
	sweep_shards(bpf_ktime_get_ns(), config.epoch_ns);

	/* Stop first, look after: a shard that turned active in between starts it again. */
	__sync_lock_test_and_set(&device.sweeping, 0);
	if (device.active_shards && !__sync_lock_test_and_set(&device.sweeping, 1))
		bpf_timer_start(&sweeper->timer, FLOW_HOLD_EPOCHS * config.epoch_ns, 0);
	return 0;
}

static __always_inline void sweep_start(__u64 hold_ns)
{
	__u32 zero = 0;
	struct sweeper *sweeper;

	if (__sync_lock_test_and_set(&device.sweeping, 1))
		return;
	sweeper = bpf_map_lookup_elem(&sweeper_map, &zero);
	if (!sweeper)
		return;
	/* Refused once it is initialised, which is as good. */
	bpf_timer_init(&sweeper->timer, &sweeper_map, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&sweeper->timer, sweep_run);
	bpf_timer_start(&sweeper->timer, hold_ns, 0);
}

/* Notes a packet of (queue, tin) and tells the controller when the shard turned active or its flow
 * count crossed a step.
 */
static __always_inline void activity_note(struct shard *shard, __u32 queue, __u32 tin, __u64 now,
					  __u64 departure, __u64 hold_ns)
{
	__u32 step = flow_step(flows_of(shard->flows));

	if (departure > shard->busy_until_ns)
		shard->busy_until_ns = departure;
	if (!shard->active) {
		if (__sync_lock_test_and_set(&shard->active, 1))
			return;
		__sync_fetch_and_add(&device.active_shards, 1);
		shard->flows_reported = step;
		event_send(EVENT_ACTIVE, queue, tin, flows_of(shard->flows), now);
		sweep_start(hold_ns);
		return;
	}
	if (step != shard->flows_reported) {
		shard->flows_reported = step;
		event_send(EVENT_FLOWS, queue, tin, flows_of(shard->flows), now);
	}
}

#endif
