// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

func cellKey(queue, tin int) uint32 { return uint32(queue*MaxTins + tin) }

// WriteCell sets the effective rate of (queue, tin); 0 takes it out of the plan.
func (d *DataPath) WriteCell(queue, tin int, rate rates.Rate) error {
	var pace uint64
	if rate > 0 {
		pace = rates.NsPerByteQ24(rate)
	}
	if err := d.objects.Cells.Put(cellKey(queue, tin), pace); err != nil {
		return fmt.Errorf("write the effective rate of queue %d, tin %d: %w", queue, tin, err)
	}
	return nil
}

// Cells reads every effective rate that is set.
func (d *DataPath) Cells() ([]rates.Grant, error) {
	var grants []rates.Grant
	var key uint32
	var pace uint64
	cells := d.objects.Cells.Iterate()
	for cells.Next(&key, &pace) {
		if pace != 0 {
			grants = append(grants, rates.Grant{Queue: int(key) / MaxTins, Tin: int(key) % MaxTins, Rate: rates.RateFromNsPerByteQ24(pace)})
		}
	}
	if err := cells.Err(); err != nil {
		return nil, fmt.Errorf("read the effective rates: %w", err)
	}
	return grants, nil
}

// Active appends the (queue, tin)s that are active now, with their flow counts, to buf.
func (d *DataPath) Active(buf []rates.Cell) ([]rates.Cell, error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	if d.shardKeys == nil {
		d.shardKeys = make([]uint32, d.objects.Shards.MaxEntries())
		d.shards = make([]dataPathShard, len(d.shardKeys))
	}
	keys, shards := d.shardKeys, d.shards
	var cursor ebpf.MapBatchCursor
	n, err := d.objects.Shards.BatchLookup(&cursor, keys, shards, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read which queues are active: %w", err)
	}
	for i := range n {
		if shards[i].Active != 0 {
			buf = append(buf, rates.Cell{Queue: int(keys[i]) / MaxTins, Tin: int(keys[i]) % MaxTins, Flows: uint32(max(shards[i].Flows, 1))})
		}
	}
	return buf, nil
}

// EventsLost counts the events that found no room in the ring.
func (d *DataPath) EventsLost() (uint64, error) {
	var state dataPathDeviceState
	if err := d.objects.Device.Lookup(uint32(0), &state); err != nil {
		return 0, fmt.Errorf("read the count of lost events: %w", err)
	}
	return state.EventsLost, nil
}

// Unanswered tells how many events no controller has read yet, and when the oldest of them was sent,
// on CLOCK_MONOTONIC. A controller reads them within a moment, so that old ones mean there is none, or
// that it is stopped. It can be asked while another process reads.
func (d *DataPath) Unanswered() (events int, oldest time.Duration, err error) {
	// The ring is a page with the consumer's position, one with the producer's, and the data, twice
	// in a row so that no record is cut.
	page, size := os.Getpagesize(), int(d.objects.Events.MaxEntries())
	fd := d.objects.Events.FD()
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the ring of events: %w", err)
	}
	defer unix.Munmap(consumer)
	ring, err := unix.Mmap(fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the ring of events: %w", err)
	}
	defer unix.Munmap(ring)
	read := binary.NativeEndian.Uint64(consumer)
	written := binary.NativeEndian.Uint64(ring)
	if written <= read {
		return 0, 0, nil
	}
	const headerBytes = 8
	var event dataPathEvent
	at := page + int(read%uint64(size)) + headerBytes
	if _, err := binary.Decode(ring[at:], binary.NativeEndian, &event); err != nil {
		return 0, 0, fmt.Errorf("decode the oldest event: %w", err)
	}
	return int(written-read) / (headerBytes + binary.Size(event)), time.Duration(event.TimeNs), nil
}

// Event says that a (queue, tin) turned active or idle, or that its number of flows changed.
type Event struct {
	// Time is when the packet or the timer noticed, on CLOCK_MONOTONIC.
	Time time.Duration
	Kind EventKind
}

// EventKind is what an event tells.
type EventKind uint32

// The kinds of events.
const (
	EventActive = EventKind(dataPathEventKindEVENT_ACTIVE)
	EventFlows  = EventKind(dataPathEventKindEVENT_FLOWS)
	EventIdle   = EventKind(dataPathEventKindEVENT_IDLE)
)

// String is the kind's name as metrics and logs show it.
func (k EventKind) String() string {
	switch k {
	case EventActive:
		return "active"
	case EventFlows:
		return "flows"
	case EventIdle:
		return "idle"
	}
	return fmt.Sprintf("kind_%d", uint32(k))
}

// Events reads the data path's events, one reader at a time.
type Events struct {
	reader *ringbuf.Reader
	record ringbuf.Record
}

// Events opens the ring of events.
func (d *DataPath) Events() (*Events, error) {
	reader, err := ringbuf.NewReader(d.objects.Events)
	if err != nil {
		return nil, fmt.Errorf("open the ring of events: %w", err)
	}
	return &Events{reader: reader}, nil
}

// Next waits for the next event. It returns ctx's error when that ends first.
func (e *Events) Next(ctx context.Context) (Event, error) {
	// A deadline would not do: setting one waits for the read that it is to interrupt.
	stop := context.AfterFunc(ctx, func() { _ = e.reader.Flush() })
	defer stop()
	if err := e.reader.ReadInto(&e.record); err != nil {
		if errors.Is(err, ringbuf.ErrFlushed) && ctx.Err() != nil {
			return Event{}, ctx.Err()
		}
		return Event{}, fmt.Errorf("read an event: %w", err)
	}
	var raw dataPathEvent
	if _, err := binary.Decode(e.record.RawSample, binary.NativeEndian, &raw); err != nil {
		return Event{}, fmt.Errorf("decode an event: %w", err)
	}
	return Event{Time: time.Duration(raw.TimeNs), Kind: EventKind(raw.Kind)}, nil
}

// Pending reports whether another event can be read without waiting.
func (e *Events) Pending() bool { return e.reader.AvailableBytes() > 0 }

// Close lets go of the ring.
func (e *Events) Close() error { return e.reader.Close() }
