// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"pgregory.net/rapid"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/model"
	"github.com/cakectl/cakectl/pkg/rates"
)

// The data path and the model are given the same packets at the same times, and have to agree about
// all of them: departures, drops, marks, and what is counted.

const (
	twinQueues = 4
	twinTins   = 4
	// Few, so that sets fill up and flows have to share.
	twinFlows = 32

	linkHeader = 14
	// A test run wants a whole IPv4 header.
	minFrame, maxFrame = linkHeader + 20, 2000
)

// twins are the data path and the model side by side.
type twins struct {
	*injected
	model    *model.Path
	settings Settings
	nowNs    int64
	// departureNs is when the last packet leaves that was not dropped.
	departureNs int64
	options     ebpf.RunOptions
	context     skbContext
	out         skbContext
	frames      map[frameKey][]byte
}

type frameKey struct {
	tin int
	ecn bool
}

func newTwins(t testing.TB) *twins {
	tw := &twins{
		injected: newInjected(t, Options{Queues: twinQueues, Tins: twinTins, Flows: twinFlows, LinkHeaderBytes: linkHeader}, testSettings(rates.Mbit)),
		frames:   map[frameKey][]byte{},
	}
	for tin := range twinTins {
		for _, ecn := range []bool{false, true} {
			frame := ipv4Frame(uint8(tin), 1, maxFrame)
			if ecn {
				frame[15] |= 2
			}
			tw.frames[frameKey{tin, ecn}] = frame
		}
	}
	tw.options = ebpf.RunOptions{DataOut: make([]byte, 2*maxFrame), Context: &tw.context, ContextOut: &tw.out}
	return tw
}

// start makes both new, at a time and with settings.
func (tw *twins) start(t fataler, nowNs int64, settings Settings) {
	o := &tw.objects
	zero := uint32(0)
	must := func(err error) {
		if err != nil {
			t.Fatalf("clear a map: %v", err)
		}
	}
	// An epoch that has begun leaves none to begin to the real sweep, which may still run.
	epochNs := int64(settings.Epoch)
	must(o.Device.Put(zero, dataPathDeviceState{Epoch: model.Epochs, EpochStartNs: uint64(nowNs / epochNs * epochNs)}))
	must(o.Calendar.Put(zero, dataPathCalendar{}))
	must(o.Config.Put(zero, dataPathDeviceConfig{}))
	for key := range o.Shards.MaxEntries() {
		must(o.Shards.Put(key, dataPathShard{}))
		must(o.ShardEnds.Put(key, dataPathShardEnds{}))
		must(o.Cells.Put(key, uint64(0)))
	}
	empty := make([]byte, o.Flows.ValueSize())
	for key := range o.Flows.MaxEntries() {
		must(o.Flows.Put(key, empty))
	}
	perCPU := make([]dataPathTinCounters, ebpf.MustPossibleCPU())
	for tin := range o.TinStats.MaxEntries() {
		must(o.TinStats.Put(tin, perCPU))
	}
	tw.nowNs, tw.settings = nowNs, settings
	must(tw.configure(settings, uint64(nowNs)))
	tw.model = model.New(modelSettings(settings), twinFlows)
}

func modelSettings(s Settings) model.Settings {
	m := model.Settings{
		Bandwidth:        s.Bandwidth,
		LocalHorizonNs:   int64(s.LocalHorizon),
		ForwardHorizonNs: int64(s.ForwardHorizon),
		FullPacketBytes:  int64(s.FullPacketBytes),
		EpochNs:          int64(s.Epoch),
		EqualFlows:       s.EqualFlows,
	}
	for _, tin := range s.Tins {
		m.Tins = append(m.Tins, model.TinSettings{
			Rate: tin.Rate, Ceil: tin.Ceil,
			AQMTargetNs: int64(tin.AQMTarget), AQMIntervalNs: int64(tin.AQMInterval),
		})
	}
	return m
}

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// step is one thing that happens, a pause after the one before.
type step struct {
	pauseNs int64
	// aheadNs is how far in the future a packet's own departure time lies; 0 is none.
	aheadNs int64
	// One of these: a packet, else new settings, else a cell's rate, else a sweep.
	packet   *model.Packet
	settings *Settings
	cell     *rates.Grant
}

// GoString is how rapid shows a step.
func (s step) GoString() string {
	switch {
	case s.packet != nil:
		return fmt.Sprintf("+%d ns: packet %+v, own time ahead %d ns", s.pauseNs, *s.packet, s.aheadNs)
	case s.settings != nil:
		return fmt.Sprintf("+%d ns: settings %+v", s.pauseNs, *s.settings)
	case s.cell != nil:
		return fmt.Sprintf("+%d ns: cell %+v", s.pauseNs, *s.cell)
	}
	return fmt.Sprintf("+%d ns: sweep", s.pauseNs)
}

// do lets a step happen to both and fails where they differ.
func (tw *twins) do(t fataler, s step) {
	t.Helper()
	tw.nowNs += s.pauseNs
	if err := tw.now.Set(uint64(tw.nowNs)); err != nil {
		t.Fatalf("set the time: %v", err)
	}
	switch {
	case s.packet != nil:
		p := *s.packet
		if s.aheadNs != 0 {
			p.OwnNs = tw.nowNs + s.aheadNs
		}
		tw.enqueue(t, p)
	case s.settings != nil:
		tw.settings = *s.settings
		if err := tw.configure(*s.settings, uint64(tw.nowNs)); err != nil {
			t.Fatalf("%v", err)
		}
		tw.model.Configure(tw.nowNs, modelSettings(*s.settings))
	case s.cell != nil:
		if err := tw.WriteCell(s.cell.Queue, s.cell.Tin, s.cell.Rate); err != nil {
			t.Fatalf("%v", err)
		}
		tw.model.SetCell(s.cell.Queue, s.cell.Tin, s.cell.Rate)
	default:
		if _, err := tw.sweep.Run(&ebpf.RunOptions{Data: tw.frames[frameKey{}]}); err != nil {
			t.Fatalf("sweep: %v", err)
		}
		tw.model.Sweep(tw.nowNs)
	}
}

func (tw *twins) enqueue(t fataler, p model.Packet) {
	t.Helper()
	frame, wireBytes := tw.frames[frameKey{p.Tin, p.ECNCapable}][:64], p.Bytes
	if tw.settings.Framing != (framing.Framing{}) {
		// Framing looks at the bytes that are there, of which a test run takes a page at most.
		wireBytes = minFrame + wireBytes%(maxFrame-minFrame)
		frame = frame[:wireBytes]
		p.Bytes = int64(tw.settings.Framing.Bytes(len(frame), linkHeader))
		p.Segments = 1
	}
	want := tw.model.Enqueue(tw.nowNs, p)
	for variable, value := range map[*ebpf.Variable]any{tw.hash: p.Hash, tw.forwarded: p.Forwarded} {
		if err := variable.Set(value); err != nil {
			t.Fatalf("set a variable: %v", err)
		}
	}
	tw.context = skbContext{WireLen: uint32(wireBytes), GSOSegs: uint32(p.Segments), Tstamp: uint64(p.OwnNs)}
	tw.options.Data = frame
	tw.options.DataOut = tw.options.DataOut[:cap(tw.options.DataOut)]
	verdict, err := tw.program.Run(&tw.options)
	if err != nil {
		t.Fatalf("run the program: %v", err)
	}
	got := model.Verdict{
		Dropped: int32(verdict) == actShot,
		Marked:  int32(verdict) != actShot && tw.options.DataOut[15]&3 == 3,
	}
	if !got.Dropped {
		// A time that is not written is not in the future: the packet leaves at once.
		got.DepartureNs = max(int64(tw.out.Tstamp), tw.nowNs)
		tw.departureNs = got.DepartureNs
	}
	if got != want {
		t.Fatalf("at %d ns, %+v: %+v, the model has %+v", tw.nowNs, p, got, want)
	}
}

// wantSameCounts compares what was counted.
func (tw *twins) wantSameCounts(t fataler) {
	t.Helper()
	for tin := range tw.settings.Tins {
		c, err := tw.TinCounters(tin)
		if err != nil {
			t.Fatalf("%v", err)
		}
		got := model.TinCounters{
			Packets: c.Packets, Bytes: c.Bytes, DelayedPackets: c.DelayedPackets, MarkedPackets: c.ECNMarkedPackets,
			HorizonDrops: model.DropCount(c.Drops[0]), AQMDrops: model.DropCount(c.Drops[1]),
			SojournNs: uint64(c.SojournSum), SojournBuckets: [len(model.TinCounters{}.SojournBuckets)]uint64(c.SojournBuckets),
		}
		if want := tw.model.Counters(tin); got != want {
			t.Fatalf("tin %d: counted %+v, the model has %+v", tin, got, want)
		}
	}
	active, err := tw.Active(nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	order := func(a, b rates.Cell) int { return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Tin, b.Tin)) }
	want := slices.SortedFunc(slices.Values(tw.model.Active()), order)
	if slices.SortFunc(active, order); !slices.Equal(active, want) {
		t.Fatalf("active: %v, the model has %v", active, want)
	}
}

// anyTwinRate draws a bandwidth: as many slow ones as fast ones.
func anyTwinRate(t *rapid.T) rates.Rate {
	exponent := rapid.IntRange(0, 22).Draw(t, "exponent")
	return min(rates.Rate(rapid.Int64Range(64_000, 128_000).Draw(t, "mantissa"))<<exponent, rates.MaxBandwidth)
}

func anySettings(t *rapid.T) Settings {
	bandwidth := anyTwinRate(t)
	s := Settings{
		Bandwidth:       bandwidth,
		LocalHorizon:    rapid.SampledFrom([]time.Duration{2 * time.Second, 60 * time.Second}).Draw(t, "local horizon"),
		ForwardHorizon:  rapid.SampledFrom([]time.Duration{10 * time.Millisecond, 100 * time.Millisecond}).Draw(t, "forward horizon"),
		FullPacketBytes: rapid.SampledFrom([]int{1514, 9014}).Draw(t, "full packet"),
		Epoch:           rapid.SampledFrom([]time.Duration{4 * time.Millisecond, 128 * time.Millisecond}).Draw(t, "epoch"),
		EqualFlows:      rapid.Bool().Draw(t, "equal flows"),
		Queues:          twinQueues,
	}
	for dscp := range s.Classes.DSCPToTin {
		s.Classes.DSCPToTin[dscp] = uint8(dscp % twinTins)
	}
	if rapid.IntRange(0, 3).Draw(t, "framed") == 0 {
		s.Framing = framing.Framing{
			OverIP: true, OverheadBytes: rapid.IntRange(-19, 60).Draw(t, "overhead"), MPUBytes: rapid.IntRange(0, 80).Draw(t, "MPU"),
			Cells: rapid.SampledFrom([]framing.Cells{framing.None, framing.ATM, framing.PTM}).Draw(t, "cells"),
		}
	}
	for range twinTins {
		tin := TinSettings{Rate: max(bandwidth>>rapid.IntRange(0, 4).Draw(t, "tin's part"), rates.Slowest), Ceil: rates.Unlimited}
		if rapid.IntRange(0, 3).Draw(t, "has a ceiling") == 0 {
			tin.Ceil = max(bandwidth>>rapid.IntRange(0, 4).Draw(t, "ceiling's part"), rates.Slowest)
		}
		if rapid.Bool().Draw(t, "has an AQM") {
			tin.AQMTarget = time.Duration(rapid.Int64Range(1e4, 1e8).Draw(t, "AQM's target"))
			tin.AQMInterval = tin.AQMTarget * time.Duration(rapid.IntRange(2, 20).Draw(t, "AQM's interval"))
		}
		s.Tins = append(s.Tins, tin)
	}
	return s
}

// anyStart draws a time later than the machine's clock, which the real sweep goes by, and often one a
// moment before the data path's 32-bit numbers of ticks begin again at 0.
func anyStart(t *rapid.T, s Settings) int64 {
	const centuryShift = 61 // in nanoseconds, more or less
	round := int64(1) << min(32+tickShift(s.Bandwidth, s.FullPacketBytes), centuryShift)
	return rapid.OneOf(
		rapid.Int64Range(int64(injectedEpoch), 1<<centuryShift),
		rapid.Map(rapid.Int64Range(0, 1e9), func(before int64) int64 { return round - before }),
	).Draw(t, "start")
}

// trace is what happens to a device from when it is attached.
type trace struct {
	startNs  int64
	settings Settings
	steps    []step
}

// mix is what a stretch of a trace is made of.
type mix struct {
	bandwidth rates.Rate
	hashes    []uint32
	tins      int
	// meanNsPerByte is the time between packets, for each byte of them.
	meanNsPerByte float64
	// How many of 16 packets are forwarded, have their own departure time, and are super-packets.
	forwarded, paced, super int
}

func anyMix(t *rapid.T, bandwidth rates.Rate) mix {
	load := rapid.SampledFrom([]float64{0.1, 0.7, 1, 1.5, 4, 1e5}).Draw(t, "load")
	return mix{
		bandwidth:     bandwidth,
		meanNsPerByte: 8e9 / float64(bandwidth) / load,
		hashes:        rapid.SliceOfN(rapid.Uint32Range(1, 1<<32-1), 1, 40).Draw(t, "hashes"),
		tins:          rapid.SampledFrom([]int{1, 1, 2, twinTins}).Draw(t, "tins"),
		forwarded:     rapid.SampledFrom([]int{0, 8, 16}).Draw(t, "forwarded"),
		paced:         rapid.SampledFrom([]int{0, 2, 16}).Draw(t, "paced"),
		super:         rapid.SampledFrom([]int{0, 2, 12}).Draw(t, "super"),
	}
}

func anyStep(t *rapid.T, m mix) step {
	switch rapid.IntRange(0, 199).Draw(t, "kind") {
	case 0: // a cell's rate, also one that is far off, or gone
		rate := rates.Rate(0)
		if rapid.Bool().Draw(t, "planned") {
			rate = max(m.bandwidth>>rapid.IntRange(0, 6).Draw(t, "cell's part"), rates.Slowest)
		}
		return step{cell: &rates.Grant{
			Queue: rapid.IntRange(0, twinQueues-1).Draw(t, "queue"), Tin: rapid.IntRange(0, twinTins-1).Draw(t, "tin"), Rate: rate,
		}}
	case 1: // a silence, and a sweep at its end
		return step{pauseNs: rapid.OneOf(rapid.Int64Range(0, 5e9), rapid.Int64Range(0, 2e14)).Draw(t, "silence")}
	}
	of16 := func(n int, label string) bool { return rapid.IntRange(0, 15).Draw(t, label) < n }
	p := model.Packet{
		Hash: rapid.SampledFrom(m.hashes).Draw(t, "flow"),
		Tin:  rapid.IntRange(0, m.tins-1).Draw(t, "tin"),
		Bytes: rapid.OneOf(
			rapid.Int64Range(64, 300), rapid.Just(int64(1514)), rapid.Int64Range(64, 1514), rapid.Int64Range(64, 65536),
		).Draw(t, "bytes"),
		Segments:   1,
		Forwarded:  of16(m.forwarded, "forwarded"),
		ECNCapable: rapid.Bool().Draw(t, "ECN"),
	}
	p.Queue = int(uint64(p.Hash) * twinQueues >> 32)
	if of16(m.super, "super") {
		p.Segments = rapid.Int64Range(2, 43).Draw(t, "segments")
		p.Bytes = p.Segments * 1514
	}
	s := step{packet: &p, pauseNs: rapid.Int64Range(0, int64(2*m.meanNsPerByte*float64(p.Bytes))).Draw(t, "pause")}
	if of16(m.paced, "paced") {
		s.aheadNs = rapid.OneOf(
			rapid.Int64Range(-1e6, 5e6), rapid.Int64Range(-1e9, 3e9), rapid.Just(int64(1)<<60),
		).Draw(t, "ahead")
	}
	return s
}

// anyTrace draws up to so many stretches of so many steps.
func anyTrace(stretches, minSteps, maxSteps int) *rapid.Generator[trace] {
	return rapid.Custom(func(t *rapid.T) trace {
		settings := anySettings(t)
		tr := trace{startNs: anyStart(t, settings), settings: settings}
		for range rapid.IntRange(1, stretches).Draw(t, "stretches") {
			m := anyMix(t, settings.Bandwidth)
			stretch := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step { return anyStep(t, m) }), minSteps, maxSteps)
			tr.steps = append(tr.steps, stretch.Draw(t, "stretch")...)
			if rapid.Bool().Draw(t, "change") {
				settings = anySettings(t)
				tr.steps = append(tr.steps, step{settings: &settings})
			}
		}
		return tr
	})
}

func (tw *twins) run(t fataler, tr trace) {
	t.Helper()
	tw.start(t, tr.startNs, tr.settings)
	for _, s := range tr.steps {
		tw.do(t, s)
	}
	tw.wantSameCounts(t)
}

// TestAgreesWithModel draws short traces, which are easy to read once one differs.
func TestAgreesWithModel(t *testing.T) {
	tw := newTwins(t)
	traces := anyTrace(3, 1, 100)
	rapid.Check(t, func(t *rapid.T) { tw.run(t, traces.Draw(t, "trace")) })
}

// TestAgreesWithModelAtLength is some long traces, the same in every run.
func TestAgreesWithModelAtLength(t *testing.T) {
	tw := newTwins(t)
	traces := anyTrace(10, 500, 3000)
	for seed := range 20 {
		tw.run(t, traces.Example(seed))
	}
}

// TestAgreesWithModelInClosedLoop is senders that each wait for their packets to leave, as sockets
// do. So the line settles, which it never does under random packets.
func TestAgreesWithModelInClosedLoop(t *testing.T) {
	tw := newTwins(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, bandwidth := range []rates.Rate{rates.Mbit, 40 * rates.Mbit, 900 * rates.Mbit, 100 * rates.Gbit} {
		settings := rapid.Custom(anySettings).Example(int(bandwidth))
		settings.Bandwidth = bandwidth
		for tin := range settings.Tins {
			settings.Tins[tin].Rate = bandwidth >> tin
			settings.Tins[tin].Ceil = rates.Unlimited
		}
		settings.Framing = framing.Framing{}
		tw.start(t, int64(injectedEpoch), settings)
		packetNs := int64(1514 * 8e9 / float64(bandwidth))
		var senders closedLoopSenders
		for i := range 12 {
			senders = append(senders, &closedLoopSender{
				packet:   model.Packet{Hash: random.Uint32(), Tin: i / 10, Bytes: int64(300 + random.IntN(1300)), Segments: 1},
				inFlight: make([]int64, []int{2, 3, 90}[i%3]),
				startNs:  tw.nowNs + random.Int64N(1000)*packetNs,
			})
		}
		for range 20000 {
			sender := senders.next()
			p := sender.packet
			p.Queue = int(uint64(p.Hash) * twinQueues >> 32)
			tw.do(t, step{packet: &p, pauseNs: sender.nextNs() - tw.nowNs})
			sender.sent(tw.departureNs + random.Int64N(packetNs))
		}
		tw.wantSameCounts(t)
	}
}

// closedLoopSender keeps so many packets in flight.
type closedLoopSender struct {
	packet model.Packet
	// inFlight is a ring of when its packets are gone.
	inFlight []int64
	oldest   int
	startNs  int64
}

func (s *closedLoopSender) nextNs() int64 { return max(s.inFlight[s.oldest], s.startNs) }

func (s *closedLoopSender) sent(goneNs int64) {
	s.startNs = s.nextNs()
	s.inFlight[s.oldest] = goneNs
	s.oldest = (s.oldest + 1) % len(s.inFlight)
}

type closedLoopSenders []*closedLoopSender

// next is the one that sends first.
func (s closedLoopSenders) next() *closedLoopSender {
	return slices.MinFunc(s, func(a, b *closedLoopSender) int { return cmp.Compare(a.nextNs(), b.nextNs()) })
}
