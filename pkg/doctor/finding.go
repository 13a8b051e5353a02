// SPDX-License-Identifier: BSD-2-Clause

package doctor

// Verdict is how bad a finding is.
type Verdict string

// The verdicts.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn" // it shapes, but not as well as it could
	Fail Verdict = "fail" // it cannot shape, or does not
	Skip Verdict = "skip" // there was nothing to judge, or no way to
)

// Finding is what one check found.
type Finding struct {
	// Device is empty for what concerns the host.
	Device  string  `json:"device,omitempty"`
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail"`
	// Remedy says what to do; empty where nothing has to be done.
	Remedy string `json:"remedy,omitempty"`
}

// Failed tells whether one of the findings is a failure.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Verdict == Fail {
			return true
		}
	}
	return false
}
