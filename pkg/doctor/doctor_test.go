// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/qdisc"
)

// want checks the one finding of a check: its verdict, and parts of its detail and its remedy.
func want(t *testing.T, findings []Finding, check string, verdict Verdict, parts ...string) {
	t.Helper()
	for _, f := range findings {
		if f.Check != check {
			continue
		}
		if f.Verdict != verdict {
			t.Errorf("%s: %s, want %s: %+v", check, f.Verdict, verdict, f)
		}
		for _, part := range parts {
			if !strings.Contains(f.Detail+" -> "+f.Remedy, part) {
				t.Errorf("%s: lacks %q: %+v", check, part, f)
			}
		}
		if f.Verdict == OK && f.Remedy != "" {
			t.Errorf("%s: a remedy where nothing is wrong: %+v", check, f)
		}
		return
	}
	t.Errorf("no finding %s in %+v", check, findings)
}

func TestHostFindings(t *testing.T) {
	good := Host{Kernel: "6.12.1", BTF: true, TCX: true, BPFFS: "/sys/fs/bpf/cakectl", PinsMounted: true, JIT: true}
	for _, f := range good.Findings() {
		if f.Verdict != OK {
			t.Errorf("%+v", f)
		}
	}
	if Failed(good.Findings()) {
		t.Error("a good host fails")
	}
	bad := Host{Kernel: "6.1.1", MissingCapabilities: []string{"CAP_BPF"}, FQ: qdisc.ErrNoFQ, BPFFS: "/sys/fs/bpf/cakectl"}
	findings := bad.Findings()
	want(t, findings, "rights", Fail, "CAP_BPF", "root")
	want(t, findings, "kernel", Fail, "6.1.1", "CONFIG_DEBUG_INFO_BTF")
	want(t, findings, "fq", Fail, "modprobe sch_fq")
	want(t, findings, "pins", Warn, "mount -t bpf bpf /sys/fs/bpf")
	want(t, findings, "jit", Warn, "bpf_jit_enable=1")
	if !Failed(findings) {
		t.Error("a bad host does not fail")
	}
	untried := good
	untried.FQ = ErrFQUntried
	want(t, untried.Findings(), "fq", Skip, "CAP_SYS_ADMIN")
	old := good
	old.TCX = false
	want(t, old.Findings(), "kernel", OK, "clsact")
}

// device is one with nothing wrong: four queues, XPS one to one.
func device() Device {
	d := Device{
		Name: "eth0", Kind: "device", Driver: "mlx5_core", RxQueues: 4, CPUs: 4, Programs: []string{"cakectl_egress"},
		Found:  qdisc.Journal{Up: true, NumTxQueues: 8, RealTxQueues: 4, LinkSpeedMegabits: 10000},
		Status: &api.Status{Enforcing: true, Daemon: 4711}, CheckedFor: 3 * time.Second,
		Foresight: api.Foresight{Matched: map[string]uint64{"xps": 1000}, Mismatched: map[string]uint64{"xps": 1}},
	}
	for queue := range 4 {
		d.Found.XPS = append(d.Found.XPS, qdisc.XPSMap{Queue: queue, CPUs: fmt.Sprintf("%x", 1<<queue), RxQueues: "00"})
	}
	return d
}

func TestDeviceFindings(t *testing.T) {
	for _, f := range device().Findings() {
		if f.Verdict != OK || f.Remedy != "" || f.Device != "eth0" {
			t.Errorf("%+v", f)
		}
	}
	for _, test := range []struct {
		name    string
		change  func(*Device)
		check   string
		verdict Verdict
		parts   []string
	}{
		{"a bond", func(d *Device) { d.Kind, d.Below = "bond", []string{"eth1", "eth2"} }, "device", Warn,
			[]string{"a bond over eth1, eth2", "attach to eth1, eth2"}},
		{"no line", func(d *Device) { d.Kind, d.Driver = "veth", "veth" }, "device", OK, []string{"veth, which has no line: the 10000 Mbit/s that it tells are made up"}},
		{"down", func(d *Device) { d.Found.Up = false }, "device", Warn, []string{"down", "ip link set dev eth0 up"}},
		{"one queue in use", func(d *Device) { d.Found.RealTxQueues = 1 }, "queues", Warn, []string{"ethtool -L eth0 combined 4"}},
		{"one queue", func(d *Device) { d.Found.RealTxQueues, d.Found.NumTxQueues = 1, 1 }, "queues", OK, nil},
		{"no XPS", func(d *Device) { d.Found.XPS = nil }, "xps", OK, []string{"none"}},
		{"XPS by receive queue", func(d *Device) { d.Found.XPS[2].RxQueues = "01" }, "xps", Warn, []string{"xps_rxqs"}},
		{"queues without CPUs", func(d *Device) { d.Found.XPS[2].CPUs, d.Found.XPS[3].CPUs = "0", "0" }, "xps", Warn, []string{"queues 2, 3"}},
		{"shared queues", func(d *Device) { d.Found.XPS[0].CPUs = "f" }, "xps", Warn, []string{"share"}},
		{"no mask", func(d *Device) { d.Found.XPS[0].CPUs = "x" }, "xps", Warn, []string{"CPU mask"}},
		{"few receive queues", func(d *Device) { d.Found.XPS, d.RxQueues = nil, 1 }, "receive", Warn, []string{"1 receive queues for 4"}},
		{"foreign qdisc", func(d *Device) {
			d.Found.Qdiscs = []qdisc.Qdisc{{Kind: "fq_codel", Handle: 0x10000, Parent: 0xffffffff}}
		}, "qdisc", Warn, []string{"fq_codel", "--replace"}},
		{"lossy qdisc", func(d *Device) {
			d.Found.Qdiscs = []qdisc.Qdisc{{Kind: "htb", Handle: 0x10000, Parent: 0xffffffff, Classes: 2}}
		}, "qdisc", Warn, []string{"remove it first"}},
		{"program before", func(d *Device) { d.Programs = []string{"cil_to_netdev", "cakectl_egress"} }, "hook", Warn, []string{"before ours: cil_to_netdev"}},
		{"program after", func(d *Device) { d.Programs = []string{"cakectl_egress", "u32 filter"} }, "hook", OK, []string{"after ours: u32 filter"}},
		{"not enforcing", func(d *Device) { d.Status = &api.Status{Reason: "the device is gone"} }, "shaping", Fail, []string{"the device is gone", "cakectl attach eth0"}},
		{"no daemon", func(d *Device) { d.Status.Daemon = 0 }, "controller", Warn, []string{"no process"}},
		{"stopped daemon", func(d *Device) { d.Status.Controller.State = api.ControllerStopped }, "controller", Warn, []string{"kill -CONT 4711"}},
		{"no check", func(d *Device) { d.CheckFailed = errors.New("no BTF") }, "foresight", Warn, []string{"no BTF"}},
		{"no traffic", func(d *Device) { d.Foresight = api.Foresight{} }, "foresight", Skip, []string{"nothing was sent in 3s"}},
		{"XPS changed", func(d *Device) { d.Foresight.Mismatched["xps"] = 500 }, "foresight", Warn, []string{"1000 of 1500", "XPS maps"}},
		{"a filter behind", func(d *Device) { d.Foresight.Mismatched["hash"] = 500 }, "foresight", Warn, []string{"skbedit"}},
		{"a VLAN above", func(d *Device) {
			d.Found.GSOMaxSizeBytes, d.Found.GSOMaxSegments = 3384, 2
			d.Above = []Above{{"eth0.5", 65536}, {"eth0.6", 3384}}
		}, "gso", Warn, []string{"those of eth0.5 65536:", "-> ip link set dev eth0.5 gso_max_size 3384 gso_max_segs 2"}},
		{"a VLAN with the limit", func(d *Device) {
			d.Found.GSOMaxSizeBytes, d.Above = 3384, []Above{{"eth0.5", 3384}}
		}, "gso", OK, []string{"at most 3384 bytes"}},
		{"driver chooses", func(d *Device) { d.Foresight.Mismatched["xps"], d.Foresight.DriverChooses = 500, true }, "foresight", Warn, []string{"the driver chooses itself"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := device()
			test.change(&d)
			want(t, d.Findings(), test.check, test.verdict, test.parts...)
		})
	}
	unattached := device()
	unattached.Status, unattached.Programs = nil, nil
	for _, f := range unattached.Findings() {
		if f.Check == "shaping" || f.Check == "foresight" {
			t.Errorf("not attached, and a finding: %+v", f)
		}
	}
}

// What is seen of a real device.
func TestLook(t *testing.T) {
	host, err := LookAtHost(filepath.Join(testnet.BPFFS(t), "cakectl"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if host.Kernel == "" || !host.BTF || !host.PinsMounted {
		t.Errorf("host %+v", host)
	}
	testnet.Enter(t)
	testnet.Veth(t, 4)
	path := filepath.Join(testnet.Sysfs(t), testnet.Device, "queues/tx-2/xps_cpus")
	if err := os.WriteFile(path, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	testnet.Run(t, "tc qdisc add dev v0 root handle 1: pfifo")
	testnet.Run(t, "tc qdisc add dev v0 clsact")
	foreign, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if err := netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: testnet.Link(t, testnet.Device).Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS,
			Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
		},
		Fd: foreign.FD(), Name: "foreign", DirectAction: true,
	}); err != nil {
		t.Fatal(err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "v0.5", testnet.Link(t, testnet.Device).Attrs().Index
	if err := netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		t.Logf("no macvlan in this kernel: %v", err)
	} else {
		stacked, err := LookAtDevice("v0.5")
		if err != nil {
			t.Fatal(err)
		}
		want(t, stacked.Findings(), "device", Warn, "a macvlan over v0", "attach to v0")
	}
	d, err := LookAtDevice(testnet.Device)
	if err != nil {
		t.Fatal(err)
	}
	findings := d.Findings()
	if stacked := d.Above; len(stacked) > 0 && (stacked[0].Name != "v0.5" || stacked[0].GSOMaxSizeBytes == 0) {
		t.Errorf("above it: %+v", stacked)
	}
	want(t, findings, "device", OK, "veth")
	want(t, findings, "queues", OK, "4 of 4")
	want(t, findings, "xps", Warn, "queues 0, 1, 3")
	want(t, findings, "qdisc", Warn, "pfifo is not the kernel's default", "--replace")
	want(t, findings, "hook", OK, "others at egress: foreign")
	if _, err := LookAtDevice("nodev"); err == nil {
		t.Error("looked at a device that is not there")
	}
}
