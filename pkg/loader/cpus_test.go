// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/rates"
)

// BenchmarkCPUs shows what a packet costs when two CPUs send through one data path, against one CPU that
// sends alone. Two CPUs that have a data path each are beside it: what is more there is the machine's
// doing. An iteration is a round of all of these, and figures are medians (make bench-cpus).
func BenchmarkCPUs(b *testing.B) {
	// At the highest rate no packet waits, at the others nearly all do, but none is dropped.
	for _, bandwidth := range []rates.Rate{100 * rates.Gbit, 20 * rates.Gbit, 5 * rates.Gbit} {
		for _, leases := range []bool{true, false} {
			b.Run(fmt.Sprintf("%v/leases=%v", bandwidth, leases), func(b *testing.B) {
				benchmarkCPUs(b, bandwidth, leases)
			})
		}
	}
}

const (
	benchmarkQueues  = 8
	benchmarkPackets = 100_000 // of each CPU in a round
	benchmarkBytes   = 1514
)

func benchmarkCPUs(b *testing.B, bandwidth rates.Rate, leases bool) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs two CPUs")
	}
	one, two, other := newBenchmark(b, bandwidth, leases), newBenchmark(b, bandwidth, leases), newBenchmark(b, bandwidth, leases)
	ports := one.portsOfQueues(b)
	var alone, shared, apart []float64
	for b.Loop() {
		for cpu := range 2 {
			alone = append(alone, run(b, sender{one, cpu, ports[cpu]})...)
		}
		shared = append(shared, run(b, sender{two, 0, ports[0]}, sender{two, 1, ports[1]})...)
		apart = append(apart, run(b, sender{one, 0, ports[0]}, sender{other, 1, ports[1]})...)
		// What has been booked leaves.
		time.Sleep(time.Duration(2 * benchmarkPackets * benchmarkBytes * 8 * uint64(time.Second) / uint64(bandwidth)))
	}
	b.ReportMetric(0, "ns/op") // of a round, which means nothing
	b.ReportMetric(median(alone), "ns/packet-alone")
	b.ReportMetric(median(shared), "ns/packet-shared")
	b.ReportMetric(median(apart), "ns/packet-apart")
	b.ReportMetric(median(shared)/median(alone), "shared/alone")
	b.ReportMetric(median(shared)/median(apart), "shared/apart")
}

func newBenchmark(b *testing.B, bandwidth rates.Rate, leases bool) *DataPath {
	b.Helper()
	d, err := Load(Options{Queues: benchmarkQueues, Tins: 1, LinkHeaderBytes: 14})
	if err != nil {
		b.Fatalf("%+v", err)
	}
	b.Cleanup(func() { d.Close() })
	settings := testSettings(bandwidth)
	settings.Queues = benchmarkQueues
	settings.Leases = leases
	if err := d.Configure(settings); err != nil {
		b.Fatal(err)
	}
	return d
}

// portsOfQueues finds two flows that go to different queues.
func (d *DataPath) portsOfQueues(b *testing.B) [2]uint16 {
	b.Helper()
	first := d.queueOf(b, 1)
	for port := uint16(2); port < 100; port++ {
		if d.queueOf(b, port) != first {
			return [2]uint16{1, port}
		}
	}
	b.Fatal("all flows go to one queue")
	return [2]uint16{}
}

// queueOf sends packets of a flow and looks where they were counted.
func (d *DataPath) queueOf(b *testing.B, port uint16) int {
	b.Helper()
	counted := func() (counts [benchmarkQueues]uint64) {
		for queue := range counts {
			c, err := d.QueueCounters(queue)
			if err != nil {
				b.Fatal(err)
			}
			counts[queue] = c.Packets
		}
		return counts
	}
	before := counted()
	run(b, sender{d, 0, port})
	for queue, count := range counted() {
		if count != before[queue] {
			return queue
		}
	}
	b.Fatal("no queue has counted the packets")
	return 0
}

// sender is a CPU that sends packets of one flow through a data path.
type sender struct {
	path *DataPath
	cpu  int
	port uint16
}

// run lets CPUs send at the same time and returns the nanoseconds a packet of each. The kernel takes the
// time, without that in which something else runs.
func run(b *testing.B, senders ...sender) []float64 {
	b.Helper()
	costs := make([]float64, len(senders))
	errs := make([]error, len(senders))
	done := make(chan struct{})
	for i, s := range senders {
		go func() {
			costs[i], errs[i] = s.send()
			done <- struct{}{}
		}()
	}
	for range senders {
		<-done
	}
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	return costs
}

func (s sender) send() (float64, error) {
	runtime.LockOSThread() // and never unlocks: the thread, which stays on its CPU, ends with the goroutine
	var set unix.CPUSet
	set.Set(s.cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return 0, fmt.Errorf("stay on CPU %d: %w", s.cpu, err)
	}
	// Whatever else wants the CPU would keep the senders from sending at the same time.
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return 0, fmt.Errorf("take precedence on CPU %d: %w", s.cpu, err)
	}
	verdict, each, err := s.path.objects.CakectlEgress.Benchmark(ipv4Frame(0, s.port, benchmarkBytes), benchmarkPackets, nil)
	if err == nil && int32(verdict) != actUnspec {
		err = fmt.Errorf("verdict %d", int32(verdict))
	}
	return float64(each.Nanoseconds()), err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
