// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/cakectl/cakectl/pkg/daemon"
	"github.com/cakectl/cakectl/pkg/shaper"
)

const manDir = "../../docs/man"

// The manual pages are those of the commands' help, and that of the configuration file. After a change that
// is meant: go test ./cmd/cakectl -run Man -update
func TestManPages(t *testing.T) {
	pages := map[string][]byte{"cakectl.yaml.5": manOfFile(t)}
	a := &app{shapersFor: func(shaper.Env) daemon.Shapers { return newFakeHost() }}
	root := a.rootCommand()
	root.DisableAutoGenTag = true
	var add func(*cobra.Command)
	add = func(command *cobra.Command) {
		if command.Name() == "help" { // which the first page has brought back
			return
		}
		pages[strings.ReplaceAll(command.CommandPath(), " ", "-")+".8"] = manOf(t, command)
		for _, c := range command.Commands() {
			add(c)
		}
	}
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" { // their own help is all there is
			root.RemoveCommand(c)
		}
	}
	add(root)

	have, err := filepath.Glob(manDir + "/*")
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(manDir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range have {
		if pages[filepath.Base(path)] == nil {
			t.Errorf("%s is of no command", path)
		}
	}
	for name, page := range pages {
		path := filepath.Join(manDir, name)
		if *update {
			if err := os.WriteFile(path, page, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(string(text), string(page)); diff != "" {
			t.Errorf("%s is not up to date (-it +should); if the change is meant: go test ./cmd/cakectl -run Man -update\n%s", path, diff)
		}
	}
}

// manOf is the page of a command.
func manOf(t *testing.T, command *cobra.Command) []byte {
	t.Helper()
	var page bytes.Buffer
	date := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) // one that makes no page differ
	err := doc.GenMan(command, &doc.GenManHeader{Section: "8", Date: &date, Source: "cakectl", Manual: "System administration"}, &page)
	if err != nil {
		t.Fatal(err)
	}
	return page.Bytes()
}

// manOfFile is the page of the configuration file, from its reference.
func manOfFile(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../docs/CONFIG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := strings.Cut(string(text), "# Configuration file\n")
	if !found {
		t.Fatal("docs/CONFIG.md does not begin as it should")
	}
	body = regexp.MustCompile(`(?m)^## `).ReplaceAllString(body, "# ")
	// A terminal is too narrow for the tables.
	body = regexp.MustCompile(`(?m)^\| key .*\n\|---.*\n`).ReplaceAllString(body, "")
	body = regexp.MustCompile("(?m)^\\| `(.*)` \\| (.*) \\| (.*)\\| (.*) \\|$").ReplaceAllStringFunc(body, func(row string) string {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		key, value := strings.Trim(cells[0], "`"), "such as "+cells[1]
		if !strings.HasPrefix(cells[1], "`") {
			value = cells[1]
		}
		if cells[2] != "" {
			value += ", default " + cells[2]
		}
		return fmt.Sprintf("**%s**: %s\n: %s\n", key, value, cells[3])
	})
	return md2man.Render([]byte(fmt.Sprintf("%% cakectl.yaml 5 \"Jan 2026\" \"cakectl\" \"File formats\"\n\n# NAME\ncakectl.yaml - configuration file of cakectl serve\n\n# DESCRIPTION\n%s", body)))
}
