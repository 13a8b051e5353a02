// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	result := func(goodput, cost float64) Results {
		bulk := Row{Run: Run{Experiment: "bulk", Peer: "htb", Rate: 40e6, Queues: 8}, Values: map[string]float64{"goodput": goodput}}
		instructions := Row{Run: Run{Experiment: "cost", Peer: "htb", Rate: 1e9, Queues: 8}, Values: map[string]float64{"free": cost}}
		return Results{Rows: []Row{bulk, instructions}}
	}
	differences, compared, err := Compare(result(100, 1000), result(104, 1006))
	if err != nil || len(differences) != 1 || compared == 0 {
		t.Fatalf("Compare = %v, %d, %v, want one difference", differences, compared, err)
	}
	if got, want := differences[0].String(), "cost htb 1gbit 8q: free 1000 against 1006 (+0.6 %)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	// A ping may be some microseconds off.
	slow, slower := result(100, 1000), result(100, 1000)
	slow.Rows[0].Values["ping max"], slower.Rows[0].Values["ping max"] = 0.061, 0.069
	if differences, _, err := Compare(slow, slower); err != nil || len(differences) != 0 {
		t.Errorf("8 us: %v, %v, want no difference", differences, err)
	}
	// A second result that lacks something is no agreement.
	broken := result(100, 1000)
	broken.Rows[0].Error = "iperf3 died"
	if _, _, err := Compare(result(100, 1000), broken); err == nil || !strings.Contains(err.Error(), "not in both") {
		t.Errorf("with a broken row: %v", err)
	}
}
