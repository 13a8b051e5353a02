// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"errors"
	"testing"
)

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
		check, err := d.CheckQueues()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(check.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}
