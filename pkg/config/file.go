// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// File is what one daemon shapes. docs/CONFIG.md has every key; as YAML:
//
//	metrics: 127.0.0.1:9750 # or none
//	defaults:               # settings of all devices, where they do not say otherwise
//	  rtt: regional
//	devices:
//	  eth0:
//	    bandwidth: 2gbit
//	    diffserv: diffserv4
//	    split: flows
//	    isolation: triple   # fair between hosts first
//	    flows: 1024         # room for each queue and tin
//	    overhead: pppoe-ptm # what the line adds; also mpu: BYTES and cells: atm, ptm or noatm
//	    map: [dscp:EF=voice, mark:0x10=bulk]
//	    fwmark: 0xff
//	    inner_dscp: true
//	    wash: true
//	    whole_gso: true     # leave super-packets as large as the device takes them
//	    keep: true          # shaping outlives the daemon
//	    tins:
//	      voice: {rate: 50mbit}
//	      bulk: {ceil: 10%}
type File struct {
	MetricsAddress string
	// Devices are in the order of their names.
	Devices []Spec
}

// FileError is what is wrong at one place of a file.
type FileError struct {
	Path         string
	Line, Column int // 0 where it is the file as a whole
	Err          error
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Path, e.Err)
	}
	return fmt.Sprintf("%s:%d:%d: %v", e.Path, e.Line, e.Column, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// Is makes every FileError an [ErrInvalid].
func (e *FileError) Is(target error) bool { return target == ErrInvalid }

// ReadFile reads and checks a file, as far as that goes without asking the kernel. The error joins a
// [FileError] for everything that is wrong with it.
func ReadFile(path string) (File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return File{}, invalid("read the configuration: %w", err)
	}
	return ParseFile(path, text)
}

// ParseFile is [ReadFile] with the text at hand; path is for the errors.
func ParseFile(path string, text []byte) (File, error) {
	r := fileReader{path: path}
	file := r.read(text)
	if len(r.errs) > 0 {
		slices.SortStableFunc(r.errs, func(a, b *FileError) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		var errs []error
		for _, err := range r.errs {
			errs = append(errs, err)
		}
		return File{}, errors.Join(errs...)
	}
	return file, nil
}

// fileReader walks the tree of a file and collects what is wrong with it.
type fileReader struct {
	path string
	errs []*FileError
}

func (r *fileReader) fail(node ast.Node, err error) {
	e := &FileError{Path: r.path, Err: err}
	if node != nil {
		if token := node.GetToken(); token != nil && token.Position != nil {
			e.Line, e.Column = token.Position.Line, token.Position.Column
		}
	}
	r.errs = append(r.errs, e)
}

func (r *fileReader) read(text []byte) File {
	// Editors of other systems begin a file with a byte order mark, and YAML lets them.
	// The parser would end at a key that is there twice: entries tells of it, and of what else is wrong.
	tree, err := parser.ParseBytes(bytes.TrimPrefix(text, []byte("\ufeff")), 0, parser.AllowDuplicateMapKey())
	var syntax yaml.Error
	switch {
	case errors.As(err, &syntax):
		at := syntax.GetToken().Position
		r.errs = append(r.errs, &FileError{r.path, at.Line, at.Column, errors.New(syntax.GetMessage())})
		return File{}
	case err != nil:
		r.fail(nil, err)
		return File{}
	case len(tree.Docs) != 1 || tree.Docs[0].Body == nil:
		r.fail(nil, errors.New("want one YAML document, with a section devices"))
		return File{}
	}
	file := File{MetricsAddress: DefaultMetricsAddress}
	defaults := New("", rates.Value{})
	defaults.Keep, defaults.MetricsAddress, defaults.FromFile = true, MetricsNone, true
	var devices ast.Node
	common := written{}
	r.mapping(tree.Docs[0].Body, "the file", map[string]setter{
		"metrics": r.text(func(text string) error {
			file.MetricsAddress = text
			if text == MetricsNone {
				return nil
			}
			return checkAddress(text)
		}),
		"defaults": func(_, node ast.Node) { r.section(node, &defaults, common) },
		"devices":  func(_, node ast.Node) { devices = node },
	})
	if devices == nil {
		r.fail(nil, errors.New("no section devices"))
		return File{}
	}
	// The defaults hold wherever they stand.
	r.entries(devices, "devices", func(name string, key, node ast.Node) {
		spec := defaults
		spec.Device = name
		here := maps.Clone(common)
		here[place{}] = at{node: key}
		before := len(r.errs)
		r.section(node, &spec, here)
		r.problems(spec, here)
		if len(r.errs) > before {
			return
		}
		spec, err := spec.Apply(Change{})
		if err != nil {
			r.fail(key, fmt.Errorf("%s: %w", name, err))
			return
		}
		file.Devices = append(file.Devices, spec)
	})
	if len(file.Devices) == 0 && len(r.errs) == 0 {
		r.fail(devices, errors.New("the section devices is empty"))
	}
	slices.SortFunc(file.Devices, func(a, b Spec) int { return cmp.Compare(a.Device, b.Device) })
	return file
}

// written is where the settings of a device stand.
type written map[place]at

// at is where a setting stands. Where it is wrong by itself, what follows from that need not be told.
type at struct {
	node  ast.Node
	wrong bool
}

// problems tells what is wrong with the settings of a device together, each where it stands.
func (r *fileReader) problems(spec Spec, here written) {
	if here[place{setting: "bandwidth"}].wrong {
		spec.Bandwidth = rates.Value{}
	}
	var problems []problem
	if spec.Bandwidth.IsPercent() {
		_, problems = spec.problems()
	} else {
		_, problems = spec.resolve(0)
	}
	for _, p := range problems {
		where, ok := here[p.place]
		switch {
		case where.wrong, p.place.tin != "" && here[place{setting: "diffserv"}].wrong:
			continue
		case !ok:
			where = here[place{}]
		}
		r.fail(where.node, fmt.Errorf("%s: %w", spec.Device, p.err))
	}
}

// section reads the settings of a device, or those of all of them, on top of what spec has, and notes where
// they stand.
func (r *fileReader) section(node ast.Node, spec *Spec, here written) {
	base, overrides := spec.Tins, []TinOverride{}
	line := struct {
		framing *framing.Framing
		mpu     *int
		cells   *framing.Cells
	}{}
	keys := map[string]setter{
		"bandwidth":    r.text(parsed(&spec.Bandwidth, ParseBandwidth)),
		"diffserv":     r.text(parsed(&spec.Preset, ParsePreset)),
		"split":        r.text(parsed(&spec.Split, ParseSplit)),
		"isolation":    r.text(parsed(&spec.Isolation, ParseIsolation)),
		"flows":        r.text(parsed(&spec.Flows, ParseFlows)),
		"rtt":          r.text(parsed(&spec.RTT, ParseRTT)),
		"keep":         r.text(parsed(&spec.Keep, parseBool)),
		"replace":      r.text(parsed(&spec.Replace, parseBool)),
		"check_queues": r.text(parsed(&spec.CheckQueues, parseBool)),
		"overhead": r.text(parsed(&line.framing, asPointer(func(text string) (framing.Framing, error) {
			return ParseOverhead(text)
		}))),
		"mpu":        r.text(parsed(&line.mpu, asPointer(ParseMPU))),
		"cells":      r.text(parsed(&line.cells, asPointer(ParseCells))),
		"map":        r.list(parsed(&spec.Map, ParseMap)),
		"fwmark":     r.text(parsed(&spec.FwmarkMask, ParseFwmark)),
		"inner_dscp": r.text(parsed(&spec.InnerDSCP, parseBool)),
		"wash":       r.text(parsed(&spec.Wash, parseBool)),
		"whole_gso":  r.text(parsed(&spec.WholeGSO, parseBool)),
		"on_drift":   r.text(parsed(&spec.OnDrift, ParseOnDrift)),
		"tins": func(_, node ast.Node) {
			r.entries(node, "tins", func(name string, key, node ast.Node) {
				o := TinOverride{Name: tins.CanonicalName(name)}
				before := len(r.errs)
				r.mapping(node, "tin "+name, map[string]setter{
					"rate": r.text(func(text string) error { return o.set(name, "rate", text) }),
					"ceil": r.text(func(text string) error { return o.set(name, "ceil", text) }),
				})
				here[place{"tins", o.Name}] = at{key, len(r.errs) > before}
				overrides = append(overrides, o)
			})
		},
	}
	for name, set := range keys {
		keys[name] = func(key, node ast.Node) {
			before := len(r.errs)
			set(key, node)
			here[place{setting: name}] = at{node, len(r.errs) > before}
			if name == "tins" {
				here[place{setting: name}] = at{node: key} // each of them is noted by itself
			}
		}
	}
	r.mapping(node, cmp.Or(spec.Device, "defaults"), keys)
	spec.Tins = mergeByName(base, overrides)
	// An overhead says all about the line, wherever it stands, and the others a part of it.
	set(&spec.Framing, line.framing)
	set(&spec.Framing.MPUBytes, line.mpu)
	set(&spec.Framing.Cells, line.cells)
}

// mergeByName gives the overrides of base with those of its tins in top instead, in a slice of its
// own. Whether the preset has such tins is checked with the [Spec].
func mergeByName(base, top []TinOverride) []TinOverride {
	var merged []TinOverride
	for _, o := range base {
		if !slices.ContainsFunc(top, func(t TinOverride) bool { return t.Name == o.Name }) {
			merged = append(merged, o)
		}
	}
	return append(merged, top...)
}

// setter takes the value of one key.
type setter func(key, value ast.Node)

// mapping reads a mapping with known keys.
func (r *fileReader) mapping(node ast.Node, what string, keys map[string]setter) {
	r.entries(node, what, func(name string, key, value ast.Node) {
		set, ok := keys[name]
		if !ok {
			r.fail(key, fmt.Errorf("%s: unknown setting %q: want %s", what, name, strings.Join(slices.Sorted(maps.Keys(keys)), ", ")))
			return
		}
		set(key, value)
	})
}

// entries calls do for each entry of a mapping, the first one where a key is there twice.
func (r *fileReader) entries(node ast.Node, what string, do func(name string, key, value ast.Node)) {
	mapping, ok := node.(ast.MapNode)
	if !ok {
		r.fail(node, fmt.Errorf("%s: want settings as KEY: VALUE below it", what))
		return
	}
	firsts := map[string]*token.Token{}
	for i := mapping.MapRange(); i.Next(); {
		key := i.Key().GetToken()
		if first := firsts[key.Value]; first != nil {
			r.fail(i.Key(), fmt.Errorf("%s: %q is there twice, first in line %d", what, key.Value, first.Position.Line))
			continue
		}
		firsts[key.Value] = key
		do(key.Value, i.Key(), i.Value())
	}
}

// text makes a setter of what takes a scalar as it is written: numbers have units here.
func (r *fileReader) text(set func(string) error) setter {
	return func(key, node ast.Node) {
		if _, ok := node.(ast.ScalarNode); !ok || node.Type() == ast.NullType {
			r.fail(key, fmt.Errorf("%s: want one value", key.GetToken().Value))
			return
		}
		if err := set(node.GetToken().Value); err != nil {
			r.fail(node, err)
		}
	}
}

// list makes a setter of what takes a list of scalars as they are written.
func (r *fileReader) list(set func([]string) error) setter {
	return func(key, node ast.Node) {
		list, ok := node.(*ast.SequenceNode)
		if !ok {
			r.fail(key, fmt.Errorf("%s: want a list", key.GetToken().Value))
			return
		}
		texts := []string{}
		for _, value := range list.Values {
			text, ok := oneText(value)
			if !ok {
				r.fail(value, fmt.Errorf("%s: want one value an entry", key.GetToken().Value))
				return
			}
			texts = append(texts, text)
		}
		err := set(texts)
		if err == nil {
			return
		}
		before := len(r.errs)
		for i, value := range list.Values {
			if err := set(texts[i : i+1]); err != nil {
				r.fail(value, err)
			}
		}
		if len(r.errs) == before { // each is good alone
			r.fail(node, err)
		}
	}
}

// oneText is an entry of a list as it is written. Within braces the parser takes dscp:EF=voice for a mapping.
func oneText(node ast.Node) (string, bool) {
	if mapping, ok := node.(*ast.MappingNode); ok && len(mapping.Values) == 1 {
		entry := mapping.Values[0]
		value, ok := oneText(entry.Value)
		return entry.Key.GetToken().Value + ":" + value, ok
	}
	_, ok := node.(ast.ScalarNode)
	return node.GetToken().Value, ok && node.Type() != ast.NullType
}

// asPointer makes a parser of T one of *T.
func asPointer[T any](parse func(string) (T, error)) func(string) (*T, error) {
	return func(text string) (*T, error) {
		value, err := parse(text)
		return &value, err
	}
}

// parsed is what puts a parsed value into its place.
func parsed[S, T any](place *T, parse func(S) (T, error)) func(S) error {
	return func(text S) error {
		value, err := parse(text)
		if err == nil {
			*place = value
		}
		return err
	}
}

func parseBool(text string) (bool, error) {
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid("%q: want true or false", text)
	}
	return value, nil
}
