// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"cmp"
	"os/exec"
	"testing"
)

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	// Each list is in ascending order.
	lists := [][]string{
		{"6.1.176-1", "6.9.2-1", "6.12.117-1", "6.12.117-2", "7.0-1", "7.3.4-1"},
		{"7.3.4-1~bpo13+1", "7.3.4-1~bpo13+2", "7.3.4-1"},
		{"7.3~rc4-1~exp1", "7.3~rc4-1", "7.3~rc10-1", "7.3-1", "7.3.1-1"},
		{"9.9-1", "1:1.0-1", "2:0.1"},
		{"1.0~~", "1.0~", "1.0", "1.0a", "1.0+", "1.0.1"},
		{"1.0-0", "1.0-0.1", "1.0-1"},
	}
	for _, list := range lists {
		for i, a := range list {
			for j, b := range list {
				if got, want := compareVersions(a, b), cmp.Compare(i, j); sign(got) != want {
					t.Errorf("compareVersions(%q, %q) = %d, want the sign of %d", a, b, got, want)
				}
			}
		}
	}
}

func TestCompareVersionsAgreesWithDpkg(t *testing.T) {
	t.Parallel()
	versions := []string{"1", "01", "1.0", "1.00-0", "1.0-1", "1.0~1", "1.0+1", "1.0a", "1.0A", "0:1.0", "1:0", "1.10", "1.9", "7.3.4-1~bpo13+1", "7.3.4+1"}
	for _, a := range versions {
		for _, b := range versions {
			less := exec.Command("dpkg", "--compare-versions", a, "lt", b).Run() == nil
			if got := compareVersions(a, b) < 0; got != less {
				t.Errorf("%q before %q: %t, dpkg says %t", a, b, got, less)
			}
		}
	}
}

func sign(n int) int { return cmp.Compare(n, 0) }
