// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cakectl/cakectl/internal/testnet"
	"github.com/cakectl/cakectl/pkg/rates"
)

// TestQueueIsForeseenOrFound lets the check find a data path that was told of another XPS map than
// the kernel has, and one that was told the truth.
func TestQueueIsForeseenOrFound(t *testing.T) {
	const (
		queues           = 8
		real, wrong      = 2, 5
		sockets, packets = 20, 5
	)
	for _, told := range []int{real, wrong} {
		t.Run(fmt.Sprintf("told=%d", told), func(t *testing.T) {
			testnet.Enter(t)
			device := testnet.Veth(t, queues)
			path := filepath.Join(testnet.Sysfs(t), fmt.Sprintf("v0/queues/tx-%d/xps_cpus", real))
			if err := os.WriteFile(path, fmt.Appendf(nil, "%x", 1<<runtime.NumCPU()-1), 0); err != nil {
				t.Fatal(err)
			}
			d := load(t, queues)
			allowed := map[int][]int{}
			for cpu := range runtime.NumCPU() {
				allowed[cpu] = []int{told}
			}
			if err := d.SetXPS(allowed); err != nil {
				t.Fatal(err)
			}
			a, err := d.Attach(device, "")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Detach(device, a, filepath.Join(testnet.BPFFS(t), "v0"))
			check, err := d.CheckQueues()
			if err != nil {
				t.Fatal(err)
			}
			defer check.Close()

			sendUDP(t, sockets, packets)
			if got, err := d.Foresight(); err != nil || got != (Foresight{}) {
				t.Errorf("counted %+v before it was asked to, %v", got, err)
			}
			if err := d.CheckQueuesFor(time.Hour); err != nil {
				t.Fatal(err)
			}
			// A change of the rates does not end a check.
			if err := d.Configure(testSettingsFor(rates.Unlimited, queues)); err != nil {
				t.Fatal(err)
			}
			sendUDP(t, sockets, packets)
			got, err := d.Foresight()
			if err != nil {
				t.Fatal(err)
			}
			var matched, mismatched uint64
			for by := range got.Matched {
				matched += got.Matched[by]
				mismatched += got.Mismatched[by]
			}
			if matched+mismatched != sockets*packets {
				t.Errorf("counted %+v, want %d packets", got, sockets*packets)
			}
			// A socket's first packet goes where XPS says; most kernels keep to that from then on.
			byXPS := got.Mismatched[dataPathQueueDecisionQUEUE_BY_XPS]
			switch {
			case told == real && mismatched > 0:
				t.Errorf("counted %+v: told the truth, it should have foreseen all", got)
			case told == wrong && byXPS < sockets:
				t.Errorf("counted %+v: told wrong, it should have missed XPS' choice for %d sockets", got, sockets)
			case got.DriverChooses:
				t.Error("a veth chooses no queue")
			}
		})
	}
}
