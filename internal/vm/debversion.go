// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"cmp"
	"strconv"
	"strings"
)

// compareVersions orders two Debian package versions as dpkg does: epoch, then
// upstream version, then revision (deb-version(7)). The result is negative,
// zero or positive.
func compareVersions(a, b string) int {
	aEpoch, aUpstream, aRevision := splitVersion(a)
	bEpoch, bUpstream, bRevision := splitVersion(b)
	return cmp.Or(
		cmp.Compare(aEpoch, bEpoch),
		compareParts(aUpstream, bUpstream),
		compareParts(aRevision, bRevision),
	)
}

func splitVersion(v string) (epoch int, upstream, revision string) {
	if head, rest, found := strings.Cut(v, ":"); found {
		if n, err := strconv.Atoi(head); err == nil {
			epoch, v = n, rest
		}
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

// compareParts compares stretches of non-digits by rank and stretches of
// digits by value, alternately, until one differs.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		for (a != "" && !isDigit(a[0])) || (b != "" && !isDigit(b[0])) {
			if c := cmp.Compare(rank(a), rank(b)); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
		}
		var aDigits, bDigits string
		aDigits, a = cutDigits(a)
		bDigits, b = cutDigits(b)
		if c := cmp.Or(cmp.Compare(len(aDigits), len(bDigits)), strings.Compare(aDigits, bDigits)); c != 0 {
			return c
		}
	}
	return 0
}

// rank of the next character: a tilde before the end, the end (or a digit)
// before letters, letters before all else.
func rank(s string) int {
	switch {
	case s == "" || isDigit(s[0]):
		return 0
	case s[0] == '~':
		return -1
	case s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z':
		return int(s[0])
	default:
		return int(s[0]) + 256
	}
}

// cutDigits cuts the leading digits off s and drops their leading zeros.
func cutDigits(s string) (digits, rest string) {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return strings.TrimLeft(s[:n], "0"), s[n:]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
