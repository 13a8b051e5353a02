// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// aptSource is one entry of apt's sources: an archive and suites of it.
type aptSource struct {
	uris, suites, components []string
}

// mirrors are the archives that this machine itself installs Debian from.
type mirrors struct {
	archive  string
	security string // empty when the machine has no security archive
}

// debianSuites are names of the main archive's suites that a machine may be installed from.
var debianSuites = []string{
	"bullseye", "bookworm", "trixie", "forky", "duke", "sid",
	"oldoldstable", "oldstable", "stable", "testing", "unstable",
}

// findMirrors reads apt's configuration below etc (normally /etc/apt).
func findMirrors(etc string) (mirrors, error) {
	var sources []aptSource
	paths, err := filepath.Glob(filepath.Join(etc, "sources.list.d", "*"))
	if err != nil {
		return mirrors{}, fmt.Errorf("list apt sources: %w", err)
	}
	for _, path := range append([]string{filepath.Join(etc, "sources.list")}, paths...) {
		text, err := os.ReadFile(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return mirrors{}, fmt.Errorf("read apt source: %w", err)
		}
		switch filepath.Ext(path) {
		case ".list":
			sources = append(sources, parseOneLine(string(text))...)
		case ".sources":
			sources = append(sources, parseDeb822(string(text))...)
		}
	}
	return chooseMirrors(sources)
}

// chooseMirrors takes the entries whose address looks like an archive of
// Debian's before those that only name a suite of Debian's, as other vendors'
// archives do too.
func chooseMirrors(sources []aptSource) (mirrors, error) {
	var found mirrors
	var other string
	for _, source := range sources {
		if len(source.uris) == 0 || !slices.Contains(source.components, "main") {
			continue
		}
		uri := source.uris[0]
		for _, suite := range source.suites {
			switch {
			case found.security == "" && strings.HasSuffix(suite, "-security") && archiveName(uri) == "debian-security":
				found.security = uri
			case !slices.Contains(debianSuites, suite):
			case found.archive == "" && archiveName(uri) == "debian":
				found.archive = uri
			case other == "":
				other = uri
			}
		}
	}
	if found.archive == "" {
		found.archive = other
	}
	if found.archive == "" {
		return mirrors{}, errors.New("apt's sources name no archive of Debian: the kernels for the VM come from there")
	}
	return found, nil
}

func archiveName(uri string) string {
	parsed, err := url.Parse(uri)
	if err != nil {
		return ""
	}
	return path.Base(strings.TrimRight(parsed.Path, "/"))
}

// parseOneLine reads the format "deb [options] URI suite component...".
func parseOneLine(text string) []aptSource {
	var sources []aptSource
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "deb" {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if fields := strings.Fields(rest); len(fields) >= 2 {
			sources = append(sources, aptSource{uris: fields[:1], suites: fields[1:2], components: fields[2:]})
		}
	}
	return sources
}

// parseDeb822 reads the format of .sources files.
func parseDeb822(text string) []aptSource {
	var sources []aptSource
	for _, stanza := range parseStanzas(text) {
		if !slices.Contains(strings.Fields(stanza["Types"]), "deb") || strings.EqualFold(stanza["Enabled"], "no") {
			continue
		}
		sources = append(sources, aptSource{
			uris:       strings.Fields(stanza["URIs"]),
			suites:     strings.Fields(stanza["Suites"]),
			components: strings.Fields(stanza["Components"]),
		})
	}
	return sources
}

// parseStanzas reads Debian control data: fields by name, one map a stanza.
func parseStanzas(text string) []map[string]string {
	var stanzas []map[string]string
	var current map[string]string
	var field string
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			current = nil
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			if current != nil {
				current[field] += "\n" + strings.TrimSpace(line)
			}
		default:
			name, value, found := strings.Cut(line, ":")
			if !found {
				continue
			}
			if current == nil {
				current = map[string]string{}
				stanzas = append(stanzas, current)
			}
			field = name
			current[field] = strings.TrimSpace(value)
		}
	}
	return stanzas
}
