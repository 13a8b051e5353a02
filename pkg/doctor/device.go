// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/loader"
	"github.com/cakectl/cakectl/pkg/qdisc"
)

// Findings judges the device, and the shaping where there is any.
func (d Device) Findings() []Finding {
	findings := []Finding{d.device(), d.queues()}
	if d.txQueues() > 1 {
		findings = append(findings, d.xps(), d.receive())
	}
	findings = append(findings, d.qdisc(), d.hook())
	if d.Status != nil {
		findings = append(findings, d.enforcing(), d.controller(), d.foresight())
		if len(d.Above) > 0 {
			findings = append(findings, d.superPackets())
		}
	}
	for i := range findings {
		findings[i].Device = d.Name
	}
	return findings
}

func (d Device) txQueues() int { return max(cmp.Or(d.Found.RealTxQueues, d.Found.NumTxQueues), 1) }

func (d Device) device() Finding {
	f := Finding{Check: "device", Verdict: OK, Detail: cmp.Or(d.Driver, d.Kind)}
	switch {
	case len(d.Below) > 0:
		f.Verdict = Warn
		f.Detail = fmt.Sprintf("a %s over %s, whose queues hold the packets", d.Kind, strings.Join(d.Below, ", "))
		f.Remedy = "attach to " + strings.Join(d.Below, ", ") + " instead"
	case !d.Found.Up:
		f.Verdict, f.Detail = Warn, f.Detail+", down"
		f.Remedy = "ip link set dev " + d.Name + " up"
	case d.Found.LinkSpeedMegabits > 0 && d.speedMadeUp():
		f.Detail += fmt.Sprintf(", which has no line: the %d Mbit/s that it tells are made up, so give it a bandwidth that is not in %%", d.Found.LinkSpeedMegabits)
	case d.Found.LinkSpeedMegabits > 0:
		f.Detail += fmt.Sprintf(", %d Mbit/s", d.Found.LinkSpeedMegabits)
	}
	return f
}

// speedMadeUp tells whether the kernel makes a speed up because the device is software alone.
func (d Device) speedMadeUp() bool {
	return slices.Contains([]string{"veth", "tun", "tuntap", "dummy", "ifb"}, d.Kind)
}

func (d Device) queues() Finding {
	f := Finding{Check: "queues", Verdict: OK, Detail: fmt.Sprintf("%d of %d transmit queues in use", d.txQueues(), d.Found.NumTxQueues)}
	if d.txQueues() == 1 && d.CPUs > 1 && d.Found.NumTxQueues > 1 {
		f.Verdict = Warn
		f.Detail += fmt.Sprintf(": %d CPUs share one lock", d.CPUs)
		f.Remedy = fmt.Sprintf("ethtool -L %s combined %d", d.Name, min(d.CPUs, d.Found.NumTxQueues))
	}
	return f
}

func (d Device) xps() Finding {
	f := Finding{Check: "xps", Verdict: OK}
	queuesOf, err := qdisc.XPSQueues(d.Found.XPS)
	if err != nil {
		f.Verdict, f.Detail = Warn, err.Error()
		return f
	}
	var unreached []int
	cpusOf := map[int]int{}
	for _, queues := range queuesOf {
		for _, queue := range queues {
			cpusOf[queue]++
		}
	}
	for queue := range d.txQueues() {
		if cpusOf[queue] == 0 {
			unreached = append(unreached, queue)
		}
	}
	most := slices.MaxFunc(append(slices.Collect(maps.Values(queuesOf)), nil), func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
	shared := len(cpusOf) > 0 && slices.Max(slices.Collect(maps.Values(cpusOf))) > 1
	path := "/sys/class/net/" + d.Name + "/queues/tx-N/"
	switch {
	case slices.ContainsFunc(d.Found.XPS, func(m qdisc.XPSMap) bool { return strings.Trim(m.RxQueues, "0,") != "" }):
		f.Verdict, f.Detail = Warn, "maps of receive queues (xps_rxqs) are set, which are not foreseen"
		f.Remedy = "write 0 to each " + path + "xps_rxqs"
	case len(queuesOf) == 0:
		f.Detail = "none: a hash chooses the queue of each flow"
	case len(most) > loader.MaxXPSQueues:
		f.Verdict = Warn
		f.Detail = fmt.Sprintf("a CPU has %d queues, and only %d of them are foreseen", len(most), loader.MaxXPSQueues)
		f.Remedy = "give each CPU fewer queues in " + path + "xps_cpus"
	case len(unreached) > 0:
		f.Verdict, f.Detail = Warn, fmt.Sprintf("no CPU may use %s", queueNumbers(unreached))
		f.Remedy = "give them to CPUs in " + path + "xps_cpus, or write 0 to all of them"
	case shared && d.txQueues() >= d.CPUs:
		f.Verdict, f.Detail = Warn, "CPUs share queues, though there is one for each"
		f.Remedy = "give each CPU a queue of its own in " + path + "xps_cpus"
	default:
		f.Detail = fmt.Sprintf("%d CPUs, %d queues", len(queuesOf), len(cpusOf))
	}
	return f
}

func queueNumbers(queues []int) string {
	texts := make([]string, len(queues))
	for i, queue := range queues {
		texts[i] = strconv.Itoa(queue)
	}
	return "queues " + strings.Join(texts, ", ")
}

// receive is about forwarded packets: where XPS does not decide, they leave by the queue with the
// number of the one that they came in by.
func (d Device) receive() Finding {
	f := Finding{Check: "receive", Verdict: OK, Detail: fmt.Sprintf("%d receive queues", d.RxQueues)}
	if d.RxQueues < d.txQueues() && len(d.Found.XPS) == 0 {
		f.Verdict = Warn
		f.Detail = fmt.Sprintf("%d receive queues for %d transmit queues: what is forwarded between such devices uses the first %[1]d", d.RxQueues, d.txQueues())
		f.Remedy = fmt.Sprintf("ethtool -L %s combined %d on the devices that packets come in by, or XPS", d.Name, d.txQueues())
	}
	return f
}

func (d Device) qdisc() Finding {
	f := Finding{Check: "qdisc", Verdict: OK, Detail: cmp.Or(d.Found.RootKind(), "none")}
	if !d.Found.Default() && !d.Found.Ours() {
		f.Verdict = Warn
		f.Detail += " is not the kernel's default"
		f.Remedy = "attach with --replace takes its place until detach restores it"
		if lost := d.Found.Unrestorable(); len(lost) > 0 {
			f.Remedy = "remove it first: it could not be restored (" + strings.Join(lost, "; ") + ")"
		}
	}
	return f
}

func (d Device) hook() Finding {
	f := Finding{Check: "hook", Verdict: OK}
	own := slices.IndexFunc(d.Programs, func(name string) bool { return strings.HasPrefix(name, ownProgram) })
	others := slices.DeleteFunc(slices.Clone(d.Programs), func(name string) bool { return strings.HasPrefix(name, ownProgram) })
	list := strings.Join(others, ", ")
	switch {
	case len(others) == 0:
		f.Detail = "no other program at egress"
	case own > 0:
		f.Verdict = Warn
		f.Detail = fmt.Sprintf("before ours: %s: what they redirect or end is not shaped", strings.Join(d.Programs[:own], ", "))
		f.Remedy = "attach them after ours, or detach and attach cakectl again"
	case own == 0:
		f.Detail = "after ours: " + list
	default:
		f.Detail = "others at egress: " + list
	}
	return f
}

func (d Device) enforcing() Finding {
	if d.Status.Enforcing {
		return Finding{Check: "shaping", Verdict: OK, Detail: "enforcing"}
	}
	return Finding{Check: "shaping", Verdict: Fail, Detail: "not enforcing: " + d.Status.Reason,
		Remedy: "cakectl attach " + d.Name + " puts back what is missing"}
}

func (d Device) controller() Finding {
	f := Finding{Check: "controller", Verdict: OK, Detail: fmt.Sprintf("process %d", d.Status.Daemon)}
	switch c := d.Status.Controller; {
	case d.Status.Daemon == 0:
		f.Verdict, f.Detail = Warn, "no process: rates stay as they are"
		f.Remedy = "cakectl attach " + d.Name + ", or cakectl serve"
	case c.State == api.ControllerStopped:
		f.Verdict, f.Detail = Warn, f.Detail+" is stopped: rates stay as they are"
		f.Remedy = fmt.Sprintf("kill -CONT %d", d.Status.Daemon)
	case c.Stale:
		f.Verdict, f.Detail = Warn, f.Detail+fmt.Sprintf(" leaves %d events unanswered", c.UnansweredEvents)
		f.Remedy = "see its log"
	}
	return f
}

// superPackets is about what devices above hand down: it leaves in one lump.
func (d Device) superPackets() Finding {
	limit := d.Found.GSOMaxSizeBytes
	f := Finding{Check: "gso", Verdict: OK, Detail: fmt.Sprintf("super-packets of devices above are at most %d bytes too", limit)}
	var names, remedies []string
	for _, above := range d.Above {
		if above.GSOMaxSizeBytes > limit {
			names = append(names, fmt.Sprintf("%s %d", above.Name, above.GSOMaxSizeBytes))
			remedies = append(remedies, fmt.Sprintf("ip link set dev %s gso_max_size %d gso_max_segs %d", above.Name, limit, d.Found.GSOMaxSegments))
		}
	}
	if len(names) > 0 {
		f.Verdict = Warn
		f.Detail = fmt.Sprintf("super-packets have up to %d bytes, but those of %s: each leaves in one lump", limit, strings.Join(names, ", "))
		f.Remedy = strings.Join(remedies, "; ")
	}
	return f
}

// Shares of wrong guesses: each books a flow under another queue's share, and costs nothing of the
// totals.
const tolerableMismatch = 0.01

func (d Device) foresight() Finding {
	f := Finding{Check: "foresight", Verdict: OK}
	if d.CheckFailed != nil {
		f.Verdict, f.Detail = Warn, "not checked: "+d.CheckFailed.Error()
		return f
	}
	matched, mismatched := d.Foresight.Totals()
	total := matched + mismatched
	if total == 0 {
		f.Verdict, f.Detail = Skip, fmt.Sprintf("nothing was sent in %s: run it while there is traffic", d.CheckedFor)
		return f
	}
	share := float64(mismatched) / float64(total)
	f.Detail = fmt.Sprintf("%d of %d packets took the queue that was foreseen", matched, total)
	if share <= tolerableMismatch {
		return f
	}
	f.Verdict = Warn
	decisions := slices.Sorted(maps.Keys(d.Foresight.Mismatched))
	worst := slices.MaxFunc(decisions, func(a, b string) int {
		return cmp.Compare(d.Foresight.Mismatched[a], d.Foresight.Mismatched[b])
	})
	f.Detail += fmt.Sprintf("; most of the others were to be chosen by %s", worst)
	f.Remedy = mismatchRemedies()[worst]
	if d.Foresight.DriverChooses {
		f.Detail += ", but the driver chooses itself"
		f.Remedy = "none but another driver: the bandwidth and the tins' rates hold; flows of one tin may get unequal parts"
	}
	return f
}

// mismatchRemedies are by what was to decide the queue (loader.QueueDecision).
func mismatchRemedies() map[string]string {
	return map[string]string{
		"socket":  "look again in a minute: sockets keep a queue until their route is looked up anew",
		"xps":     "the XPS maps are others than when they were read: cakectl attach reads them anew",
		"mapping": "look for a program or filter behind ours that sets queue_mapping (tc filter show, skbedit)",
		"hash":    "look for a program or filter behind ours that sets queue_mapping or the hash (tc filter show, skbedit)",
	}
}
