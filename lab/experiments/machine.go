// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cakectl/cakectl/lab/topo"
)

// checkReceiver makes sure that packets which are missing were lost in the network, not by a receiver
// that was too slow.
func checkReceiver(pair *topo.Pair) error {
	return pair.Receiver.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return fmt.Errorf("read the receiver's counters: %w", err)
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != "Udp:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			i := slices.Index(names, "RcvbufErrors")
			if i < 0 || i >= len(fields) {
				break
			}
			if fields[i] != "0" {
				return fmt.Errorf("the receiver's socket buffer overflowed %s times: its losses are not the shaper's", fields[i])
			}
			return nil
		}
		return errors.New("read the receiver's counters: there is no UDP RcvbufErrors")
	})
}

// cpuTimes are sums over all CPUs since boot.
type cpuTimes struct{ idle, total uint64 }

func (c cpuTimes) idleSince(before cpuTimes) float64 {
	return 100 * float64(c.idle-before.idle) / float64(c.total-before.total)
}

func readCPU() (cpuTimes, error) {
	file, err := os.Open("/proc/stat")
	if err != nil {
		return cpuTimes{}, fmt.Errorf("read the CPUs' times: %w", err)
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Scan()
	fields := strings.Fields(scanner.Text())
	if len(fields) < 6 || fields[0] != "cpu" {
		return cpuTimes{}, fmt.Errorf("read the CPUs' times: %q is not their sum", scanner.Text())
	}
	var c cpuTimes
	// user nice system idle iowait irq softirq steal; guest times are in user already.
	for i, field := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return cpuTimes{}, fmt.Errorf("read the CPUs' times: %w", err)
		}
		c.total += n
		if i == 3 || i == 4 {
			c.idle += n
		}
	}
	return c, nil
}
