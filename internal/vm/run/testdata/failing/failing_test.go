// SPDX-License-Identifier: BSD-2-Clause

// Package failing has tests that pass and fail, for the test of the command
// that runs tests in a VM.
package failing

import (
	"os"
	"testing"
)

func TestReadsItsData(t *testing.T) {
	text, err := os.ReadFile("testdata/file")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the file says: %s", text)
}

func TestFails(t *testing.T) {
	t.Error("on purpose")
}

func TestNotAskedFor(t *testing.T) {
	t.Error("this test does not match -run")
}
