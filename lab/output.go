// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/publish"
)

// output is what to make of results, beside the tables that are printed.
type output struct {
	json, readme string // files
	report       string // directory
}

// write prints tables, writes files, and says what is broken.
func (o output) write(r experiments.Results, stdout io.Writer) error {
	fmt.Fprintf(stdout, "%s\n\n", strings.Join(r.Command, " "))
	fmt.Fprintf(stdout, "Kernel %s; %v measured after %v; up to %d runs each, shapers interleaved.\n\n", r.Kernel, r.Plan.Duration, r.Plan.Warmup, r.Plan.Repeat)
	errs := []error{experiments.Table(stdout, r.Rows)}
	if o.json != "" {
		errs = append(errs, r.Write(o.json))
	}
	if o.report != "" {
		errs = append(errs, publish.Write(o.report, r))
	}
	if o.readme != "" {
		errs = append(errs, publish.UpdateReadme(o.readme, r))
	}
	return errors.Join(append(errs, r.Check())...)
}

// compare prints which medians of two files of results are further apart than those of two runs on one
// machine should be, and fails if there are any.
func compare(files []string, stdout io.Writer) error {
	if len(files) != 2 {
		return fmt.Errorf("-compare takes two files, not %d", len(files))
	}
	a, err := experiments.ReadResults(files[0])
	if err != nil {
		return err
	}
	b, err := experiments.ReadResults(files[1])
	if err != nil {
		return err
	}
	differences, compared, err := experiments.Compare(a, b)
	if err != nil {
		return err
	}
	for _, d := range differences {
		fmt.Fprintln(stdout, d)
	}
	fmt.Fprintf(stdout, "%d of %d medians differ by more than they should\n", len(differences), compared)
	if len(differences) > 0 {
		return errors.New("the results differ")
	}
	return nil
}
