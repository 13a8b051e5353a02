// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cakectl/cakectl/pkg/tins"
)

const reference = "../../docs/CONFIG.md"

// documented are the rows of a section's table in the reference.
func documented(t *testing.T, section string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), section+"\n")
	if !found {
		t.Fatalf("no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, "| `") {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

// known are the keys that a place of the file takes, as the error for another one lists them.
func known(t *testing.T, file string) []string {
	t.Helper()
	_, err := ParseFile("f.yaml", []byte(fmt.Sprintf(file, "no_such_key: 1")))
	list := regexp.MustCompile(`unknown setting "no_such_key": want (.*)`).FindStringSubmatch(fmt.Sprint(err))
	if list == nil {
		t.Fatalf("no list of keys in %v", err)
	}
	return strings.Split(list[1], ", ")
}

// The reference has every key and no other; its examples are good, and its defaults are what a file without
// the key has.
func TestReference(t *testing.T) {
	for _, test := range []struct{ section, file string }{
		{"# Configuration file", "{%s, devices: {eth0: {bandwidth: 1gbit}}}"},
		{"## Settings of a device", "devices: {eth0: {bandwidth: 1gbit, %s}}"},
		{"## Settings of a tin", "devices: {eth0: {bandwidth: 1gbit, tins: {voice: {%s}}}}"},
	} {
		t.Run(test.section, func(t *testing.T) {
			plain, err := ParseFile("f.yaml", []byte(fmt.Sprintf(test.file, "")))
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			for _, row := range documented(t, test.section) {
				if len(row) != 4 {
					t.Errorf("a row of %d cells: %q", len(row), row)
					continue
				}
				key := strings.Trim(row[0], "`")
				keys = append(keys, key)
				for i, cell := range row[1:3] {
					value, isValue := strings.CutPrefix(cell, "`")
					if !isValue {
						continue
					}
					template := test.file
					if key == "bandwidth" {
						template = strings.Replace(template, "bandwidth: 1gbit, ", "", 1)
					}
					value = strings.TrimSuffix(value, "`")
					if !strings.HasPrefix(value, "[") {
						value = `"` + value + `"`
					}
					text := fmt.Sprintf(template, key+": "+value)
					file, err := ParseFile("f.yaml", []byte(text))
					if err != nil {
						t.Errorf("%s: %v", text, err)
						continue
					}
					same := file.MetricsAddress == plain.MetricsAddress && len(Differences(plain.Devices[0], file.Devices[0])) == 0
					if isDefault := i == 1; same != isDefault {
						t.Errorf("%s: is the default: %t, and the reference says %t", text, same, isDefault)
					}
				}
			}
			slices.Sort(keys)
			if diff := cmp.Diff(known(t, test.file), keys); diff != "" {
				t.Errorf("keys of the file, and those of %s (-known +described):\n%s", reference, diff)
			}
		})
	}
}

// Examples of the documents are good files.
func TestDocumentedFiles(t *testing.T) {
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) == 0 {
		t.Error("no example in " + reference)
	}
	for _, example := range examples {
		if _, err := ParseFile(reference, example[1]); err != nil {
			t.Errorf("%v\n%s", err, example[1])
		}
	}
	for _, preset := range []tins.Preset{tins.BestEffort, tins.Diffserv3, tins.Diffserv4} {
		def, err := tins.Lookup(string(preset))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range def.DisplayOrder {
			names = append(names, "`"+def.Tins[i].Name+"`")
		}
		if !regexp.MustCompile("`" + string(preset) + "` (has )?" + strings.Join(names, ", ")).Match(text) {
			t.Errorf("%s does not say that %s has %s", reference, preset, strings.Join(names, ", "))
		}
	}
}
