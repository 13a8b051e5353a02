// SPDX-License-Identifier: BSD-2-Clause

package qdisc

import (
	"context"
	"fmt"
)

// step is one change of the device. Its name completes "device: name: error".
type step struct {
	name string
	do   func() error
}

// steps runs changes in order and stops at the first that fails or when the
// context is done.
type steps struct {
	device string
	list   []step
	// before, when set, is called ahead of each step and can make it fail.
	before func(name string) error
}

func (s *steps) add(name string, do func() error) {
	s.list = append(s.list, step{name, do})
}

func (s *steps) run(ctx context.Context) error {
	for _, st := range s.list {
		err := ctx.Err()
		if err == nil && s.before != nil {
			err = s.before(st.name)
		}
		if err == nil {
			err = st.do()
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.device, st.name, err)
		}
	}
	return nil
}
