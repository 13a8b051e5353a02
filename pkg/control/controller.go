// SPDX-License-Identifier: BSD-2-Clause

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Recomputes a second under a storm of events, and how many may follow each other at once before
// that limit holds: no second has more than the sum. Events that have to wait are answered by one
// recompute.
const (
	recomputesPerSecond = 10
	recomputeBurst      = 10
)

// maxDrained bounds the events that one recompute answers: as many as the ring holds. A storm that
// refills the ring while it is read must not keep the recompute waiting.
const maxDrained = 2048

// Kernel is the data path as the controller sees it.
type Kernel interface {
	// Active appends the (queue, tin)s that are active now.
	Active(buf []rates.Cell) ([]rates.Cell, error)
	// WriteCell sets the effective rate of a (queue, tin); 0 takes it out of the plan.
	WriteCell(queue, tin int, rate rates.Rate) error
	// PutControllerCounters keeps the counters beyond this process.
	PutControllerCounters(loader.ControllerCounters) error
}

// Events is the source of what wakes the controller.
type Events interface {
	// Next waits for an event, or for the end of ctx.
	Next(ctx context.Context) (loader.Event, error)
	// Pending tells whether Next would return at once.
	Pending() bool
}

// Controller plans and writes the effective rates of one device. It is safe for concurrent use.
type Controller struct {
	kernel  Kernel
	log     *slog.Logger
	reacted func(time.Duration)
	woken   func(active int)
	limiter *rate.Limiter

	mu       sync.Mutex
	config   rates.Config
	planner  rates.Planner
	active   []rates.Cell
	written  map[cell]rates.Rate // what the kernel has
	counters loader.ControllerCounters
}

type cell struct{ queue, tin int }

// Options are what a Controller starts from.
type Options struct {
	Config rates.Config
	// Written are the effective rates that the kernel has already.
	Written []rates.Grant
	// Counters go on from here.
	Counters loader.ControllerCounters
	// Reacted, if set, is told the time from each event that changed rates to their being written.
	Reacted func(time.Duration)
	// Woken, if set, is called after each event that woke the controller, with the number of
	// (queue, tin)s that are active.
	Woken func(active int)
	Log   *slog.Logger
}

// New makes a Controller. It does nothing until [Controller.Run], [Controller.Recompute] or
// [Controller.Configure].
func New(kernel Kernel, o Options) *Controller {
	c := &Controller{
		kernel:   kernel,
		log:      o.Log,
		reacted:  o.Reacted,
		woken:    o.Woken,
		limiter:  rate.NewLimiter(recomputesPerSecond, recomputeBurst),
		config:   o.Config,
		written:  make(map[cell]rates.Rate, len(o.Written)),
		counters: o.Counters,
	}
	for _, grant := range o.Written {
		c.written[cell{grant.Queue, grant.Tin}] = grant.Rate
	}
	return c
}

// Run answers events until ctx ends, and returns nil then.
func (c *Controller) Run(ctx context.Context, events Events) error {
	return onUrgentThread(
		func(err error) { c.log.Debug("the controller may have to wait for a CPU", "err", err) },
		func() error { return c.run(ctx, events) },
	)
}

func (c *Controller) run(ctx context.Context, events Events) error {
	for {
		first, err := events.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.limiter.Wait(ctx); err != nil {
			return nil
		}
		count := uint64(1)
		for count < maxDrained && events.Pending() {
			_, err := events.Next(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			count++
		}
		writes, active, err := c.recompute(triggerOf(first.Kind), count)
		if err != nil {
			return err
		}
		if writes > 0 && c.reacted != nil {
			c.reacted(Now() - first.Time)
		}
		if c.woken != nil {
			c.woken(active)
		}
	}
}

func triggerOf(kind loader.EventKind) loader.Trigger {
	switch kind {
	case loader.EventActive:
		return loader.TriggerActive
	case loader.EventIdle:
		return loader.TriggerIdle
	default:
		return loader.TriggerFlows
	}
}

// Now is the clock that events are stamped with.
func Now() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("CLOCK_MONOTONIC: %v", err)) // every Linux has it
	}
	return time.Duration(now.Nano())
}

// Recompute brings the kernel's rates in step with what is active now and returns how many it had
// to write.
func (c *Controller) Recompute(trigger loader.Trigger) (writes int, err error) {
	writes, _, err = c.recompute(trigger, 0)
	return writes, err
}

func (c *Controller) recompute(trigger loader.Trigger, events uint64) (writes, active int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counters.Events += events
	writes, err = c.apply(trigger)
	return writes, len(c.active), err
}

// Configure makes a new configuration effective: shrinking rates are written before configure is
// called, growing ones after it, so that at no time more is guaranteed than there is. Where that
// fails before configure has succeeded, the configuration stays what it was.
func (c *Controller) Configure(config rates.Config, configure func() error) (writes int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if config.Bandwidth < c.config.Bandwidth {
		before := c.config
		c.config = config
		writes, err = c.apply(loader.TriggerSet)
		if err == nil {
			err = configure()
		}
		if err != nil {
			// A next Configure has to know from which bandwidth it starts.
			c.config = before
		}
		return writes, err
	}
	if err := configure(); err != nil {
		return 0, err
	}
	c.config = config
	return c.apply(loader.TriggerSet)
}

// apply plans and writes what differs. It needs c.mu.
func (c *Controller) apply(trigger loader.Trigger) (writes int, err error) {
	c.active, err = c.kernel.Active(c.active[:0])
	if err != nil {
		return 0, err
	}
	changes := c.changes(c.planner.Plan(c.config, c.active))
	for _, change := range changes {
		if err := c.kernel.WriteCell(change.Queue, change.Tin, change.Rate); err != nil {
			return writes, errors.Join(err, c.count(trigger, writes, false))
		}
		writes++
		if pace(change.Rate) == 0 {
			delete(c.written, cell{change.Queue, change.Tin})
		} else {
			c.written[cell{change.Queue, change.Tin}] = change.Rate
		}
	}
	c.log.Debug("recomputed the effective rates", "trigger", trigger.String(), "active", len(c.active), "writes", writes)
	return writes, c.count(trigger, writes, len(changes) == 0)
}

// count notes a recompute: how many rates it wrote, and whether there were none to write.
func (c *Controller) count(trigger loader.Trigger, writes int, unchanged bool) error {
	c.counters.Recomputes[trigger]++
	c.counters.RateWrites += uint64(writes)
	if unchanged {
		c.counters.UnchangedRecomputes++
	}
	if writes > 0 {
		c.counters.LastChange = time.Now()
	}
	return c.kernel.PutControllerCounters(c.counters)
}

// changes are the writes that turn what the kernel has into plan: those that shrink a rate first, so
// that no packet sees guarantees above the bandwidth.
func (c *Controller) changes(plan []rates.Grant) []rates.Grant {
	var changes []rates.Grant
	planned := make(map[cell]bool, len(plan))
	for _, grant := range plan {
		key := cell{grant.Queue, grant.Tin}
		planned[key] = true
		if pace(c.written[key]) != pace(grant.Rate) {
			changes = append(changes, grant)
		}
	}
	for key := range c.written {
		if !planned[key] {
			changes = append(changes, rates.Grant{Queue: key.queue, Tin: key.tin})
		}
	}
	grows := func(g rates.Grant) int {
		if g.Rate > c.written[cell{g.Queue, g.Tin}] {
			return 1
		}
		return 0
	}
	slices.SortFunc(changes, func(a, b rates.Grant) int {
		return cmp.Or(cmp.Compare(grows(a), grows(b)), cmp.Compare(a.Tin, b.Tin), cmp.Compare(a.Queue, b.Queue))
	})
	return changes
}

// pace is a rate as the kernel holds it: rates that look the same there are the same.
func pace(r rates.Rate) uint64 {
	if r == 0 {
		return 0
	}
	return rates.NsPerByteQ24(r)
}

// Counters are the controller's totals, those of earlier controllers of the same maps included.
func (c *Controller) Counters() loader.ControllerCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counters
}
