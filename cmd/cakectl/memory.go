// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// takeSmallPages is for processes that stay. Where the kernel gives huge pages to all who do not ask,
// the heap's are never given back: it would fill them up again.
func takeSmallPages() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) }

// tidyUp gives back the memory that attaching took, most of it for the kernel's types: what comes from
// now on takes little. Left to the runtime, that would be done bit by bit, and wake an idle process.
func tidyUp() { debug.FreeOSMemory() }
