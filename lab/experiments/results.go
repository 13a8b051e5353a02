// SPDX-License-Identifier: BSD-2-Clause

package experiments

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cakectl/cakectl/pkg/rates"
)

// Results are all rows of a plan, and what they were measured with.
type Results struct {
	Command []string `json:"command"`
	Kernel  string   `json:"kernel"`
	// Versions are those of the programs that took part.
	Versions map[string]string `json:"versions"`
	Time     time.Time         `json:"time"`
	Plan     Plan              `json:"plan"`
	Rows     []Row             `json:"rows"`
}

// Run is what identifies a row.
type Run struct {
	Experiment string     `json:"experiment"`
	Peer       string     `json:"peer"`
	Rate       rates.Rate `json:"rate_bits_per_second"`
	Queues     int        `json:"queues"`
	Repeat     int        `json:"repeat"`
}

// Sort puts the rows into the order of the plan's runs; rows that are missing become broken ones.
func (r *Results) Sort() {
	there := map[Run]Row{}
	for _, row := range r.Rows {
		there[row.Run] = row
	}
	r.Rows = nil
	for _, run := range r.Plan.Runs() {
		row, ok := there[run]
		if !ok {
			row = Row{Run: run, Error: "it was not run"}
		}
		r.Rows = append(r.Rows, row)
	}
}

// Check says how many rows are broken, if any is.
func (r Results) Check() error {
	broken := 0
	for _, row := range r.Rows {
		if row.Error != "" {
			broken++
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d runs are broken", broken, len(r.Rows))
	}
	if len(r.Rows) == 0 {
		return errors.New("nothing was run")
	}
	return nil
}

// Write writes the results to a file.
func (r Results) Write(file string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// ReadResults reads what Write wrote.
func ReadResults(file string) (r Results, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("read %s: %w", file, err)
	}
	return r, nil
}
