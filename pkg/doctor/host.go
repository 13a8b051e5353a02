// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cakectl/cakectl/pkg/qdisc"
)

// Host is what shaping depends on and all devices share.
type Host struct {
	Kernel              string // its release
	MissingCapabilities []string
	BTF, TCX            bool
	// FQ is nil where a device can have an fq, and [ErrFQUntried] where that is not known.
	FQ error
	// BPFFS is the directory for pins, PinsMounted whether it is on a BPF file system.
	BPFFS       string
	PinsMounted bool
	// JIT is false where BPF programs are interpreted.
	JIT bool
}

// ErrFQUntried is why it is not known whether the kernel has fq.
var ErrFQUntried = errors.New("whether this kernel has sch_fq cannot be tried without CAP_SYS_ADMIN")

// LookAtHost asks the kernel. What else cannot be found out without rights is taken for good: the missing
// rights are a finding of their own.
func LookAtHost(bpffs string, missingCapabilities []string) (Host, error) {
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return Host{}, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	host := Host{
		Kernel:              unix.ByteSliceToString(uname.Release[:]),
		MissingCapabilities: missingCapabilities,
		BPFFS:               bpffs,
		FQ:                  TryFQ(),
		JIT:                 true,
	}
	if types, err := btf.LoadKernelSpec(); err == nil {
		var link *btf.Struct
		host.BTF, host.TCX = true, types.TypeByName("tcx_link", &link) == nil
	}
	var stat unix.Statfs_t
	if unix.Statfs(filepath.Dir(bpffs), &stat) == nil {
		host.PinsMounted = stat.Type == unix.BPF_FS_MAGIC
	}
	if text, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable"); err == nil {
		host.JIT = strings.TrimSpace(string(text)) != "0"
	}
	return host, nil
}

// TryFQ is [qdisc.ErrNoFQ] where the kernel has no fq, and [ErrFQUntried] where it may not try. It gives
// the loopback device of a network namespace of its own an fq. The thread that is in there ends with its
// goroutine, and the namespace with the thread.
func TryFQ() error {
	tried := make(chan error)
	go func() {
		runtime.LockOSThread()
		tried <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.QdiscAdd(netlink.NewFq(netlink.QdiscAttrs{
				LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT,
			}))
		}()
	}()
	switch err := <-tried; {
	case errors.Is(err, fs.ErrNotExist):
		return qdisc.ErrNoFQ
	case errors.Is(err, fs.ErrPermission):
		return ErrFQUntried
	default:
		return err
	}
}

// Findings judges the host.
func (h Host) Findings() []Finding {
	findings := []Finding{h.rights(), h.kernel(), h.fq(), h.pins()}
	if !h.JIT {
		findings = append(findings, Finding{Check: "jit", Verdict: Warn,
			Detail: "BPF programs are interpreted", Remedy: "sysctl net.core.bpf_jit_enable=1"})
	}
	return findings
}

func (h Host) rights() Finding {
	if len(h.MissingCapabilities) == 0 {
		return Finding{Check: "rights", Verdict: OK, Detail: "all that are needed"}
	}
	return Finding{Check: "rights", Verdict: Fail,
		Detail: "missing " + strings.Join(h.MissingCapabilities, ", "), Remedy: "run it as root"}
}

func (h Host) kernel() Finding {
	f := Finding{Check: "kernel", Verdict: OK, Detail: h.Kernel}
	switch {
	case !h.BTF:
		f.Verdict = Fail
		f.Detail += ", without its own type information (BTF)"
		f.Remedy = "run a kernel built with CONFIG_DEBUG_INFO_BTF=y"
	case h.TCX:
		f.Detail += ", with tcx"
	default:
		f.Detail += ", by clsact: it has no tcx"
	}
	return f
}

func (h Host) fq() Finding {
	switch {
	case h.FQ == nil:
		return Finding{Check: "fq", Verdict: OK, Detail: "this kernel has sch_fq"}
	case errors.Is(h.FQ, qdisc.ErrNoFQ):
		return Finding{Check: "fq", Verdict: Fail, Detail: "this kernel has no sch_fq",
			Remedy: "modprobe sch_fq, or run a kernel built with CONFIG_NET_SCH_FQ=y or =m"}
	case errors.Is(h.FQ, ErrFQUntried):
		return Finding{Check: "fq", Verdict: Skip, Detail: h.FQ.Error()}
	default:
		return Finding{Check: "fq", Verdict: Fail, Detail: h.FQ.Error()}
	}
}

func (h Host) pins() Finding {
	f := Finding{Check: "pins", Verdict: OK, Detail: h.BPFFS + " is on a BPF file system"}
	if !h.PinsMounted {
		parent := filepath.Dir(h.BPFFS)
		f.Verdict, f.Detail = Warn, "no BPF file system is mounted at "+parent
		f.Remedy = "mount -t bpf bpf " + parent + " (attach does it)"
	}
	return f
}
