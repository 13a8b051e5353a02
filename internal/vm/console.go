// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"sync"
)

const (
	consoleLimit = 1 << 20 // bytes kept of the console, at least
	tailLines    = 60      // lines of it shown with an error
)

// console keeps what the guest's console says.
type console struct {
	mu   sync.Mutex
	text []byte
	copy io.Writer // nil for none
}

// Write takes a piece of the console. It never fails: the guest must not stop
// because nobody can read about it.
func (c *console) Write(piece []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, piece...)
	// Cut back only once in a while: a cut moves everything that is kept.
	if len(c.text) > 2*consoleLimit {
		c.text = append(c.text[:0], c.text[len(c.text)-consoleLimit:]...)
	}
	if c.copy != nil {
		_, _ = c.copy.Write(piece)
	}
	return len(piece), nil
}

func (c *console) snapshot() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.ReplaceAll(c.text, []byte("\r"), nil))
}

// tail returns the last lines.
func (c *console) tail() string {
	lines := strings.Split(strings.TrimSpace(c.snapshot()), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

var (
	oopsLine    = regexp.MustCompile(`(?m)^(?:\[[ .\d]+\] )?(Kernel panic - .*|BUG: .*|kernel BUG .*|Oops: .*|general protection fault.*|INFO: task .* blocked for more than .*)$`)
	warningLine = regexp.MustCompile(`(?m)^(?:\[[ .\d]+\] )?(WARNING: .*)$`)
)

// oops returns the kernel's word for having crashed; empty if it has not.
func (c *console) oops() string {
	if match := oopsLine.FindStringSubmatch(c.snapshot()); match != nil {
		return match[1]
	}
	return ""
}

// warnings returns the kernel's complaints about itself.
func (c *console) warnings() []string {
	var lines []string
	for _, match := range warningLine.FindAllStringSubmatch(c.snapshot(), -1) {
		lines = append(lines, match[1])
	}
	return lines
}
