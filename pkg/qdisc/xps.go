// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"fmt"
	"strconv"
	"strings"
)

// XPSQueues turns XPS maps into the transmit queues that each CPU may use.
func XPSQueues(maps []XPSMap) (map[int][]int, error) {
	queues := map[int][]int{}
	for _, m := range maps {
		cpus, err := parseCPUMask(m.CPUs)
		if err != nil {
			return nil, fmt.Errorf("XPS map of queue %d: %w", m.Queue, err)
		}
		for _, cpu := range cpus {
			queues[cpu] = append(queues[cpu], m.Queue)
		}
	}
	return queues, nil
}

// parseCPUMask reads the kernel's hexadecimal masks: groups of 32 bits, the highest first.
func parseCPUMask(text string) ([]int, error) {
	var cpus []int
	groups := strings.Split(strings.TrimSpace(text), ",")
	for i, group := range groups {
		mask, err := strconv.ParseUint(group, 16, 32)
		if text != "" && err != nil {
			return nil, fmt.Errorf("CPU mask %q: %w", text, err)
		}
		for bit := range 32 {
			if mask&(1<<bit) != 0 {
				cpus = append(cpus, (len(groups)-1-i)*32+bit)
			}
		}
	}
	return cpus, nil
}
