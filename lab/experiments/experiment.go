// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cakectl/cakectl/lab/shaper"
	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/lab/traffic"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Experiment is one thing to find out about a shaper.
type Experiment struct {
	Name  string
	About string
	// Published is the result that others published of the same set-up, if they did, and Figures what of
	// it can be put beside what was measured here.
	Published string
	Figures   []Figure
	// Remark says what the numbers do not show.
	Remark string
	// Why says why shapers are ahead of cakectl, where they are.
	Why []Reason
	// Minor is for what depends little on the rate (see [Plan]).
	Minor bool
	// ShapersOnly leaves out the peers that hold no rate.
	ShapersOnly bool
	// Peers, Rates and Queues, unless empty, take the place of the plan's.
	Peers  []string
	Rates  []rates.Rate
	Queues []int
	// Network is what is between the sender and the receiver.
	Network Network
	// BothWays shapes what goes to the sender as well.
	BothWays bool
	// Steered lets flows choose their transmit queue by their mark.
	Steered bool
	// ECN lets TCP ask for marks instead of losses.
	ECN bool
	// Framing is what the line adds to packets, which shapers are told.
	Framing shaper.Framing
	Loads   []Load
	// Cost, unless nil, takes the place of loads and actions.
	Cost *CostLoad
	// Forwarding does the same.
	Forwarding *ForwardingLoad
	// Actions happen under way.
	Actions []Action
	// Measures are the columns of the result.
	Measures []Measure
}

// Network is a kind of network.
type Network string

// Kinds of networks.
const (
	Veth   Network = ""       // one link
	Routed Network = "routed" // a router between two links; its link to the receiver is shaped
	Merged Network = "merged" // the same, and what bursts bring arrives in super-packets
	Virtio Network = "virtio" // the two NICs of a virtual machine
)

func (n Network) make(prefix string, queues int) (*topo.Pair, error) {
	switch n {
	case Routed, Merged:
		return topo.NewRouted(prefix, queues, n == Merged)
	case Virtio:
		return topo.NewVirtio(prefix, queues)
	default:
		return topo.NewPair(prefix, queues)
	}
}

// Load is some traffic. One of TCP, Short, UDP, Iperf and Ping is set.
type Load struct {
	Name string
	// Back is for what goes from the receiver to the sender.
	Back bool
	// At is when it starts, as a share of the measured time; at 0 it starts before the warm-up.
	At float64
	// Until, unless 0, is when TCP ends, as a share of the measured time.
	Until float64
	TCP   *traffic.TCPConfig
	Short *traffic.ShortConfig
	UDP   *UDPLoad
	Iperf *IperfLoad
	Ping  *traffic.PingConfig
}

// UDPLoad is UDP whose rate may depend on that of the experiment.
type UDPLoad struct {
	Flows      int
	DSCP       uint8
	FrameBytes int
	// TimesBandwidth is what all flows together want to send, as a multiple of the shaped bandwidth;
	// BitsPerSecond is what each flow does. One of them is set.
	TimesBandwidth float64
	BitsPerSecond  float64
	Delays         bool
}

func (l UDPLoad) config(bandwidth float64) traffic.UDPConfig {
	rate := l.BitsPerSecond
	if l.TimesBandwidth > 0 {
		rate = l.TimesBandwidth * bandwidth / float64(l.Flows)
	}
	return traffic.UDPConfig{Flows: l.Flows, DSCP: l.DSCP, FrameBytes: l.FrameBytes, RateBitsPerSecond: rate, Delays: l.Delays}
}

// IperfLoad is TCP by iperf3, which runs from the start to the end of the measured time and leaves
// out the warm-up by itself.
type IperfLoad struct {
	Flows int
}

// Action is something done to the shaper under load.
type Action struct {
	// At is when, as a share of the measured time.
	At float64
	// TimesBandwidth, unless 0, is the new rate as a multiple of the experiment's.
	TimesBandwidth float64
	// Kill ends the shaper's process by force.
	Kill bool
	// Signal, unless 0, is sent to the shaper's process, if it has one.
	Signal syscall.Signal
	// Later is how long after At it is.
	Later time.Duration
	// Work notes what the shaper has done so far. What flows have delivered is noted at every action.
	Work bool
}

// DSCPs that experiments use.
const (
	bestEffort = 0
	cs1        = 8
	af11       = 10
	af41       = 34
	ef         = 46
)

// Lengths of frames in bytes, Ethernet header included.
const (
	fullFrame  = 1514
	smallFrame = 102
	callFrame  = 214
)

// virtioQueues is how many transmit queues the NICs of a virtual machine are given.
const virtioQueues = 4

// slowPingInterval is for slow lines, where a ping each 10 ms would take several percent.
const slowPingInterval = 100 * time.Millisecond

// pingInterval gives some hundred round trips a run without being a load of its own.
const pingInterval = 10 * time.Millisecond

// All lists the experiments.
func All() []Experiment {
	ping := Load{Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}}
	pingTimes := []Measure{pingTime("ping", 0.5), pingTime("ping", 0.99), pingTime("ping", 1)}
	windows := []Measure{window(10*time.Millisecond, max99), window(10*time.Millisecond, maximum), window(100*time.Millisecond, maximum)}
	return slices.Concat([]Experiment{
		{
			Name:     "tcp1",
			About:    "one TCP flow, a ping beside it",
			Loads:    []Load{tcp("tcp", 1, bestEffort), ping},
			Measures: slices.Concat([]Measure{goodput("tcp")}, pingTimes, windows),
		},
		{
			Name:     "tcp32",
			About:    "32 TCP flows, a ping beside them",
			Loads:    []Load{tcp("tcp", 32, bestEffort), ping},
			Measures: slices.Concat([]Measure{goodput("tcp"), jain("tcp")}, pingTimes, windows),
		},
		{
			Name:     "iperf32",
			Minor:    true,
			About:    "iperf3 with 32 TCP flows, by its own figures, a ping beside them",
			Loads:    []Load{{Name: "iperf3", Iperf: &IperfLoad{Flows: 32}}, ping},
			Measures: slices.Concat([]Measure{total(), goodput("iperf3"), jain("iperf3"), retransmits("iperf3")}, pingTimes, windows),
		},
		{
			Name:  "trickle31",
			About: "one bulk TCP flow beside 31 trickles of 100 small packets a second",
			Loads: []Load{
				tcp("tcp", 1, bestEffort),
				// A DSCP that is Best Effort as well, so that the meter can tell them apart.
				{Name: "trickle", UDP: &UDPLoad{Flows: 31, DSCP: af11, FrameBytes: smallFrame, BitsPerSecond: 100 * 8 * smallFrame, Delays: true}},
				ping,
			},
			Why: []Reason{{[]string{"goodput"}, "A goodput above what the trickles leave is data that came before the measured time and had to wait at the receiver for a " +
				"packet that was sent again."}},
			Measures: slices.Concat([]Measure{total(), goodput("tcp"), share("trickle", nil), loss("trickle"), delay("trickle", 0.99)}, pingTimes, windows),
		},
		{
			Name:  "udp16x4",
			About: "16 UDP senders that want four times the bandwidth together, a ping beside them",
			Published: "HTB with backpressure, 2022, 16 senders far above 500 Mbit/s: 0.1 % loss (97.0 % without), 482.0 Mbit/s in all " +
				"(485.9 without), flows between 29.2 and 31.8 Mbit/s, a spread of 9 %",
			Figures: []Figure{
				{"16 UDP senders: loss, %", "0.1 (97.0 without backpressure)", "udp loss"},
				{"the same: what arrives, % of the limit", "96.4", "total"},
				{"the same: spread between senders, %", "8.6", "spread"},
			},
			Why: []Reason{{[]string{"spread"}, "CAKE drops what is too much, evenly, before it has cost anything but the sender's work; cakectl holds the senders back, and what " +
				"a sender has in its socket's buffer is booked and not moved when the others' shares change."}},
			Loads:    []Load{{Name: "udp", UDP: &UDPLoad{Flows: 16, FrameBytes: fullFrame, TimesBandwidth: 4}}, ping},
			Measures: slices.Concat([]Measure{total(), loss("udp"), spread("udp"), reordered("udp")}, pingTimes, windows),
		},
		{
			Name:  "tcp4udp2x",
			About: "4 TCP flows beside one UDP sender that wants twice the bandwidth",
			Loads: []Load{
				tcp("tcp", 4, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 1, DSCP: af11, FrameBytes: fullFrame, TimesBandwidth: 2}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), leastOfFair("tcp", 5), share("udp", near(20)), loss("udp")}, pingTimes, windows),
		},
		{
			Name:  "call",
			About: "a call of 200 kbit/s (EF) beside saturating Bulk (4 TCP flows, CS1) and Best Effort (4 TCP flows)",
			Loads: []Load{
				tcp("best effort", 4, bestEffort),
				tcp("bulk", 4, cs1),
				{Name: "call", UDP: &UDPLoad{Flows: 1, DSCP: ef, FrameBytes: callFrame, BitsPerSecond: 200e3, Delays: true}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), share("bulk", near(6.25)), share("best effort", nil), loss("call"), delay("call", 0.5), delay("call", 0.99), delay("call", 1)}, pingTimes, windows),
		},
		{
			Name:     "tins",
			Minor:    true,
			About:    "Bulk (8 TCP flows, CS1), Best Effort (16) and Video (8, AF41), all saturating",
			Loads:    []Load{tcp("bulk", 8, cs1), tcp("best effort", 16, bestEffort), tcp("video", 8, af41), ping},
			Measures: slices.Concat([]Measure{total(), share("bulk", near(6.25)), share("best effort", near(43.75)), share("video", near(50))}, pingTimes, windows),
		},
		{
			Name:     "bulk",
			Minor:    true,
			About:    "Bulk alone: 4 TCP flows with CS1",
			Loads:    []Load{tcp("bulk", 4, cs1), {Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval, DSCP: cs1}}},
			Measures: slices.Concat([]Measure{goodput("bulk"), jain("bulk")}, pingTimes, windows),
		},
		{
			Name:        "step",
			About:       "the rate halved and put back under 8 TCP flows, with 8 UDP flows of 1 % each beside them",
			ShapersOnly: true,
			Loads: []Load{
				tcp("tcp", 8, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 8, DSCP: af11, FrameBytes: callFrame, TimesBandwidth: 0.08}},
				ping,
			},
			Why:     []Reason{{nil, "What has been booked stays: packets that wait when the rate changes leave by the old one."}},
			Actions: []Action{{At: 0.25, TimesBandwidth: 0.5}, {At: 0.625, TimesBandwidth: 1}},
			Measures: slices.Concat([]Measure{after("down 100ms", 0, 0.5), held("down held", 0, 0.5), after("up 100ms", 1, 1), held("up held", 1, 1),
				loss("udp"), reordered("udp")}, pingTimes),
		},
		{
			Name:        "kill",
			Minor:       true,
			About:       "the shaper's process killed under 4 TCP flows, 28 more flows later (the kernel's shapers have no process)",
			ShapersOnly: true,
			Loads:       []Load{tcp("tcp", 4, bestEffort), {Name: "more", At: 0.6, TCP: &traffic.TCPConfig{Flows: 28, DSCP: af11}}, ping},
			Actions:     []Action{{At: 0.3, Kill: true}},
			Measures: slices.Concat([]Measure{totalFrom("before", 0, 0.3), totalFrom("killed", 0.3, 0.6), totalFrom("more flows", 0.6, 1),
				worstFrom("100ms max", 100*time.Millisecond, 0, 1)}, pingTimes),
		},
		{
			Name:        "burst",
			Minor:       true,
			About:       "31 TCP flows that start together beside one that is there",
			ShapersOnly: true,
			Loads:       []Load{tcp("tcp", 1, bestEffort), {Name: "more", At: 0.5, TCP: &traffic.TCPConfig{Flows: 31, DSCP: af11}}, ping},
			Measures: slices.Concat([]Measure{totalFrom("before", 0, 0.5), totalFrom("after", 0.5, 1),
				worstFrom("10ms max before", 10*time.Millisecond, 0, 0.5), worstFrom("10ms max after", 10*time.Millisecond, 0.5, 1),
				worstFrom("100ms max after", 100*time.Millisecond, 0.5, 1)}, pingTimes),
		},
		{
			Name:    "uneven",
			Minor:   true,
			About:   "8 TCP flows on one transmit queue, 1 on another",
			Steered: true,
			Loads: []Load{
				{Name: "eight", TCP: &traffic.TCPConfig{Flows: 8, Mark: 1}},
				{Name: "one", TCP: &traffic.TCPConfig{Flows: 1, Mark: 2, DSCP: af11}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), timesFair("one", "eight"), jain("eight", "one")}, pingTimes, windows),
		},
		{
			Name:        "slow8",
			About:       "8 TCP flows on a slow line whose packets travel in ATM cells (44 bytes more, 48 of each 53)",
			ShapersOnly: true,
			Rates:       []rates.Rate{2e6, 10e6},
			Framing:     shaper.Framing{Overhead: 44, ATM: true},
			Remark:      "The ping takes 0.6 % of 2 Mbit/s.",
			Why:         []Reason{{[]string{"goodput"}, "Beside the ping no more than 99.4 % is left at 2 Mbit/s: what is above that is more than the line carries."}},
			Loads:       []Load{tcp("tcp", 8, bestEffort), {Name: "ping", Ping: &traffic.PingConfig{Interval: slowPingInterval}}},
			Measures:    slices.Concat([]Measure{goodput("tcp"), jain("tcp")}, pingTimes, []Measure{window(100*time.Millisecond, maximum)}),
		},
		{
			Name:        "rrul",
			Minor:       true,
			About:       "4 TCP flows each way, one for each tin, both ways shaped (as flent's RRUL)",
			ShapersOnly: true,
			BothWays:    true,
			Loads: []Load{
				tcp("bulk", 1, cs1), tcp("best effort", 1, bestEffort), tcp("video", 1, af41), tcp("voice", 1, ef),
				back(tcp("bulk back", 1, cs1)), back(tcp("best effort back", 1, bestEffort)),
				back(tcp("video back", 1, af41)), back(tcp("voice back", 1, ef)),
				ping,
			},
			Measures: slices.Concat([]Measure{total(), totalBack(), share("bulk", near(6.25)), share("best effort", near(18.75)), share("video", near(50)),
				share("voice", near(25)), share("best effort back", near(18.75))}, pingTimes, windows),
		},
		{
			Name:     "tcp500",
			Minor:    true,
			About:    "500 TCP flows, a ping beside them",
			Rates:    []rates.Rate{100e6}, // where each sends more than its first window
			Loads:    []Load{tcp("tcp", 500, bestEffort), ping},
			Measures: slices.Concat([]Measure{goodput("tcp"), jain("tcp"), resent("tcp")}, pingTimes, windows),
		},
		{
			Name:        "lumps",
			Minor:       true,
			About:       "a router that shapes: 4 TCP flows whose bursts arrive merged, beside video that keeps to what its tin is guaranteed",
			ShapersOnly: true,
			Network:     Merged,
			Loads: []Load{
				tcp("tcp", 4, bestEffort),
				{Name: "video", UDP: &UDPLoad{Flows: 1, DSCP: af41, FrameBytes: fullFrame, TimesBandwidth: 0.45, Delays: true}},
				ping,
			},
			Why:      []Reason{{[]string{"video p50", "video p99", "video loss"}, "A super-packet of 64 kB takes 13 ms of 40 Mbit/s, and leaves whole: what comes meanwhile waits for its end. CAKE splits it."}},
			Measures: slices.Concat([]Measure{total(), share("video", most), loss("video"), delay("video", 0.5), delay("video", 0.99)}, pingTimes, windows),
		},
		forward("forward8", "8 TCP flows through a router that shapes, without ECN", false),
		forward("forward8ecn", "the same with ECN", true),
		{
			Name:        "forwardudp",
			Minor:       true,
			About:       "a router that shapes: 4 TCP flows beside one UDP sender that wants twice the bandwidth",
			ShapersOnly: true,
			Network:     Routed,
			Loads: []Load{
				tcp("tcp", 4, bestEffort),
				{Name: "udp", UDP: &UDPLoad{Flows: 1, DSCP: af11, FrameBytes: fullFrame, TimesBandwidth: 2}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), leastOfFair("tcp", 5), share("udp", near(20)), loss("udp").unjudged(), roundTrip("tcp")}, pingTimes, windows),
		},
		{
			Name:  "bbr8",
			Minor: true,
			About: "8 TCP flows with BBR",
			Why: []Reason{{[]string{"bbr RTT"}, "cakectl neither marks nor drops what local sockets send: the time is that of what BBR itself keeps under way. " +
				"CAKE drops."}},
			Loads:    []Load{{Name: "bbr", TCP: &traffic.TCPConfig{Flows: 8, Congestion: "bbr"}}, ping},
			Measures: slices.Concat([]Measure{goodput("bbr"), jain("bbr"), resent("bbr"), roundTrip("bbr")}, pingTimes, windows),
		},
		{
			Name:        "cubicbbr",
			Minor:       true,
			About:       "4 TCP flows with CUBIC and 4 with BBR, through a router that shapes",
			ShapersOnly: true,
			Network:     Routed,
			Loads: []Load{
				{Name: "cubic", TCP: &traffic.TCPConfig{Flows: 4, Congestion: "cubic"}},
				{Name: "bbr", TCP: &traffic.TCPConfig{Flows: 4, Congestion: "bbr", DSCP: af11}},
				ping,
			},
			Measures: slices.Concat([]Measure{total(), timesFair("bbr", "cubic"), jain("cubic", "bbr"), roundTrip("cubic"), roundTrip("bbr")}, pingTimes, windows),
		},
		gso("gso", Veth, windows...),
		gso("gso-nic", Virtio, byteQueueLimit()),
		cost(),
		costThreads(),
		forwardCost(),
	}, controllerExperiments())
}

func tcp(name string, flows int, dscp uint8) Load {
	return Load{Name: name, TCP: &traffic.TCPConfig{Flows: flows, DSCP: dscp}}
}

// back turns a load round.
func back(l Load) Load {
	l.Back = true
	return l
}

// forward is bulk TCP through a router, which has no socket to hold back.
func forward(name, about string, ecn bool) Experiment {
	return Experiment{
		Name:        name,
		About:       about,
		Minor:       true,
		ShapersOnly: true,
		Network:     Routed,
		ECN:         ecn,
		Loads:       []Load{tcp("tcp", 8, bestEffort), {Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}}},
		// Without ECN it is drops that tell flows to slow down: few of them are no merit.
		Measures: []Measure{goodput("tcp"), jain("tcp"), resent("tcp").unjudged(), marked("tcp"), roundTrip("tcp"),
			pingTime("ping", 0.5), pingTime("ping", 0.99), pingTime("ping", 1), window(10*time.Millisecond, maximum), window(100*time.Millisecond, maximum)},
	}
}

// gso compares super-packets that are split or capped with those that are not.
func gso(name string, network Network, measures ...Measure) Experiment {
	e := Experiment{
		Name:  name,
		Minor: true,
		About: "a ping beside 4 TCP uploads, super-packets split or capped and not",
		Published: "CAKE, 2018, at 1 Gbit/s: ping 0.80 ms with super-packets split, 1.64 ms not split, " +
			"3.32 ms with pfifo_fast, which gave one flow three times what the others had",
		Figures: []Figure{{"ping beside 4 uploads, ms", "0.80 (3.32 with pfifo_fast)", "ping p50"}},
		Remark:  "pfifo_fast holds no rate, and nothing waits in it on a veth pair: htb, which has a FIFO behind its limit, stands for it.",
		Peers:   []string{"pfifo_fast", "htb", "cake-nosplit", "cake", "cakectl-uncapped", "cakectl"},
		Rates:   []rates.Rate{200e6},
		Network: network,
		Loads:   []Load{tcp("tcp", 4, bestEffort), {Name: "ping", Ping: &traffic.PingConfig{Interval: pingInterval}}},
		Measures: slices.Concat([]Measure{total(), jain("tcp"), spread("tcp"),
			pingTime("ping", 0.5), pingTime("ping", 0.99), pingTime("ping", 1)}, measures),
	}
	if network == Virtio {
		e.Queues = []int{virtioQueues}
		e.Rates = []rates.Rate{100e6} // the emulated NIC carries three times that
		e.Figures[0].Words += ", on a NIC"
		e.About += ", on a NIC with a real driver and byte-queue limits"
		e.Remark = "Packets pass through the host: the numbers repeat only where that has nothing else to do."
	}
	return e
}

// CountsInstructions tells that the numbers are instructions, where the clock counts them.
func (e Experiment) CountsInstructions() bool { return e.Cost != nil || e.Forwarding != nil }

// Lookup finds an experiment by its name.
func Lookup(name string) (Experiment, error) {
	var names []string
	for _, e := range All() {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Experiment{}, fmt.Errorf("no experiment %q (there are: %s)", name, strings.Join(names, ", "))
}
