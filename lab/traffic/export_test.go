// SPDX-License-Identifier: BSD-2-Clause

package traffic

// Failed tells whether a flow has ended by itself.
func (t *TCP) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.errs) > 0
}
