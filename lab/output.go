// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cakectl/cakectl/lab/experiments"
)

// output is what to make of results, beside the tables that are printed.
type output struct {
	json string // file
}

// write prints tables, writes files, and says what is broken.
func (o output) write(r experiments.Results, stdout io.Writer) error {
	fmt.Fprintf(stdout, "%s\n\n", strings.Join(r.Command, " "))
	fmt.Fprintf(stdout, "Kernel %s; %v measured after %v; %d runs each, shapers interleaved.\n\n", r.Kernel, r.Plan.Duration, r.Plan.Warmup, r.Plan.Repeat)
	errs := []error{experiments.Table(stdout, r.Rows)}
	if o.json != "" {
		errs = append(errs, r.Write(o.json))
	}
	return errors.Join(append(errs, r.Check())...)
}
