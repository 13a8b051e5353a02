// SPDX-License-Identifier: BSD-2-Clause

package loader

import "testing"

// TestLoad is the verifier's word on this kernel.
func TestLoad(t *testing.T) {
	for _, options := range []Options{
		{Queues: 1, Tins: 1, LinkHeaderBytes: 14},
		{Queues: 32, Tins: 8, LinkHeaderBytes: 0, Flows: 64},
	} {
		d, err := Load(options)
		if err != nil {
			t.Fatalf("load %+v: %v", options, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
