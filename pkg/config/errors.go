// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"errors"
	"fmt"
)

// ErrInvalid is what every error of this package is: the user has to change something.
var ErrInvalid = errors.New("invalid configuration")

// invalidError is an ErrInvalid without saying so in its text.
type invalidError struct {
	err error
}

func (e *invalidError) Error() string        { return e.err.Error() }
func (e *invalidError) Unwrap() error        { return e.err }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }

func invalid(format string, args ...any) error {
	return &invalidError{fmt.Errorf(format, args...)}
}
