// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cakectl/cakectl/pkg/framing"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/tins"
)

// What a Spec has where the user says nothing.
const (
	DefaultRTT            = 100 * time.Millisecond
	DefaultMetricsAddress = "127.0.0.1:9750"
)

// MetricsNone as metrics address switches the metrics off, as "" does.
const MetricsNone = "none"

// Spec is all that a user can ask for one device. It is stored beside the pins as JSON.
type Spec struct {
	Device string `json:"device"`
	// Bandwidth is the rate of the whole device; a percentage is of the link's speed. Unlimited
	// shapes nothing: traffic is only classified and counted.
	Bandwidth rates.Value   `json:"bandwidth,omitzero"`
	Preset    tins.Preset   `json:"preset"`
	Tins      []TinOverride `json:"tins,omitempty"`
	Split     rates.Split   `json:"split"`
	// Isolation is what is treated equally within a tin; "" is each flow.
	Isolation Isolation `json:"isolation,omitempty"`
	// Flows is the size of the flow table of each (queue, tin), a power of two; 0 leaves it to the
	// program. It cannot change while the device is attached.
	Flows int `json:"flows,omitempty"`
	// Framing is what the line behind the device adds to a packet.
	Framing framing.Framing `json:"framing,omitzero"`
	// Map are rules of the user's own for which packets go to which tin; a later one wins.
	Map []tins.Rule `json:"map,omitempty"`
	// FwmarkMask are the bits of a packet's mark that hold the number of its tin, counted from 1 in
	// the order that status shows; 0 is none.
	FwmarkMask uint32 `json:"fwmark_mask,omitempty"`
	// InnerDSCP lets the DSCP of what a tunnel carries decide, not that of the tunnel's own header.
	InnerDSCP bool `json:"inner_dscp,omitempty"`
	// Wash clears the DSCP of what is sent, once it was read.
	Wash bool `json:"wash,omitempty"`
	// WholeGSO leaves super-packets as large as the device takes them: fewer packets for the CPU, each a
	// longer lump on the line.
	WholeGSO bool `json:"whole_gso,omitempty"`
	// RTT is the round-trip time that the queue management is tuned for.
	RTT time.Duration `json:"rtt_ns"`
	// MetricsAddress is the host:port of the metrics; "" or MetricsNone is off.
	MetricsAddress string `json:"metrics_address,omitempty"`
	// Keep leaves shaping on when the process ends.
	Keep bool `json:"keep,omitempty"`
	// Replace allows to replace a qdisc that is not the kernel's default.
	Replace bool `json:"replace,omitempty"`
	// CheckQueues compares, all the time, the queues that are foreseen with those that packets go to.
	CheckQueues bool `json:"check_queues,omitempty"`
	// OnDrift is what a controller does when others change what is on the device; "" is DriftRepair.
	OnDrift OnDrift `json:"on_drift,omitempty"`
	// FromFile tells that the device is in the configuration file of a daemon: when it is not any
	// more, it is detached.
	FromFile bool `json:"from_file,omitempty"`
}

// OnDrift is what to do when others change what cakectl put on a device.
type OnDrift string

const (
	// DriftRepair puts it back, less and less often where others keep changing it.
	DriftRepair OnDrift = "repair"
	// DriftReport only tells: in the log, in the status and in the metrics.
	DriftReport OnDrift = "report"
)

// TinOverride is what a user sets for one tin. Percentages are of the device's bandwidth. Nil with
// its flag unset leaves a setting as it is.
type TinOverride struct {
	Name string `json:"name"`
	// Rate is the guarantee, in place of the preset's threshold.
	Rate *rates.Value `json:"rate,omitempty"`
	// RateDefault goes back to the preset's threshold.
	RateDefault bool `json:"rate_default,omitempty"`
	// Ceil is the hard cap. At or above the bandwidth it is none.
	Ceil *rates.Value `json:"ceil,omitempty"`
	// CeilNone goes back to no cap.
	CeilNone bool `json:"ceil_none,omitempty"`
}

// New is the Spec of a device with everything but the bandwidth at its default.
func New(device string, bandwidth rates.Value) Spec {
	return Spec{
		Device:         device,
		Bandwidth:      bandwidth,
		Preset:         tins.Default,
		Split:          rates.SplitFlows,
		Isolation:      IsolateFlows,
		RTT:            DefaultRTT,
		MetricsAddress: DefaultMetricsAddress,
	}
}

// MetricsEnabled tells whether metrics are to be served.
func (s Spec) MetricsEnabled() bool {
	return s.MetricsAddress != "" && s.MetricsAddress != MetricsNone
}

// Validate checks all that can be checked without the link's speed: with a bandwidth in percent that
// leaves the ranges of the rates and their sum to Resolve.
func (s Spec) Validate() error {
	if s.Bandwidth.IsPercent() {
		_, err := s.check()
		return err
	}
	_, err := s.Resolve(0)
	return err
}

// Resolve checks s and turns it into rates. link is the link's speed, which percentages of bandwidth
// are of; 0 is unknown.
func (s Spec) Resolve(link rates.Rate) (rates.Config, error) {
	cfg, problems := s.resolve(link)
	if len(problems) > 0 {
		return rates.Config{}, problems[0].err
	}
	return cfg, nil
}

// problem is something that is wrong with a [Spec], and where.
type problem struct {
	place place
	err   error
}

// place is a setting, by the name of the file's key, or a tin in it; the zero value is the device as a whole.
type place struct {
	setting string
	tin     string // canonical
}

// resolve is Resolve, with all that is wrong.
func (s Spec) resolve(link rates.Rate) (rates.Config, []problem) {
	def, problems := s.problems()
	if len(def.Tins) == 0 || s.Bandwidth.IsZero() {
		return rates.Config{}, problems
	}
	bandwidth, err := s.resolveBandwidth(link)
	if err != nil {
		return rates.Config{}, append(problems, problem{place{setting: "bandwidth"}, err})
	}
	cfg := rates.Config{
		Bandwidth:  bandwidth,
		Split:      s.Split,
		Tins:       make([]rates.TinConfig, len(def.Tins)),
		DefaultTin: def.DefaultTin,
	}
	for i, tin := range def.Tins {
		cfg.Tins[i] = rates.TinConfig{Name: tin.Name, Rate: tin.Threshold.Of(bandwidth), Ceil: rates.Unlimited}
	}
	tinsAreGood := true
	for _, o := range s.Tins {
		at := place{"tins", o.Name}
		if slices.ContainsFunc(problems, func(p problem) bool { return p.place == at }) {
			tinsAreGood = false
			continue
		}
		i, err := def.TinIndex(o.Name)
		if err == nil {
			cfg.Tins[i], err = o.resolve(cfg.Tins[i], bandwidth)
		}
		if err != nil {
			tinsAreGood = false
			problems = append(problems, problem{at, &invalidError{err}})
		}
	}
	if tinsAreGood {
		if err := checkGuarantees(cfg, def); err != nil {
			problems = append(problems, problem{place{setting: "tins"}, err})
		}
	}
	return cfg, problems
}

// check checks everything that is not a rate's size.
func (s Spec) check() (tins.Def, error) {
	def, problems := s.problems()
	if len(problems) > 0 {
		return tins.Def{}, problems[0].err
	}
	return def, nil
}

// problems finds all that is wrong and not a rate's size. The tins' definition is empty where there is no
// such preset.
func (s Spec) problems() (def tins.Def, problems []problem) {
	add := func(setting string, err error) {
		if err == nil {
			return
		}
		if !errors.Is(err, ErrInvalid) {
			err = &invalidError{err}
		}
		problems = append(problems, problem{place{setting: setting}, err})
	}
	add("", checkDevice(s.Device))
	if s.Bandwidth.IsZero() {
		add("bandwidth", invalid("no bandwidth given"))
	}
	def, err := tins.Lookup(string(s.Preset))
	add("diffserv", err)
	if err == nil {
		problems = append(problems, overrideProblems(def, s.Tins)...)
	}
	_, splitErr := ParseSplit(string(s.Split))
	add("split", splitErr)
	add("isolation", checkIsolation(s.Isolation, s.Split))
	add("flows", checkFlows(s.Flows))
	add("overhead", s.Framing.Check())
	if err == nil {
		_, err := def.Classify(s.Map)
		add("map", err)
	}
	add("rtt", checkRTT(s.RTT))
	if s.OnDrift != "" {
		_, err := ParseOnDrift(string(s.OnDrift))
		add("on_drift", err)
	}
	if s.MetricsEnabled() {
		add("metrics", checkAddress(s.MetricsAddress))
	}
	return def, problems
}

// maxDeviceName is the kernel's IFNAMSIZ without the final zero byte.
const maxDeviceName = 15

// checkDevice takes the names that the kernel takes. They are safe as the name of a directory.
func checkDevice(name string) error {
	switch {
	case name == "":
		return invalid("no device given")
	case len(name) > maxDeviceName:
		return invalid("device %q: a name has at most %d bytes", name, maxDeviceName)
	case name == "." || name == "..",
		strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r == 0 || unicode.IsSpace(r) }):
		return invalid("device %q: not a name that a device can have", name)
	}
	return nil
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return invalid("metrics address %q: want HOST:PORT, such as %s, or %s", address, DefaultMetricsAddress, MetricsNone)
	}
	return nil
}

// checkOverrides returns the first of the [overrideProblems].
func checkOverrides(def tins.Def, overrides []TinOverride) error {
	if problems := overrideProblems(def, overrides); len(problems) > 0 {
		return problems[0].err
	}
	return nil
}

// overrideProblems checks that each override is for a tin that there is, says something clear, and is
// the only one for its tin.
func overrideProblems(def tins.Def, overrides []TinOverride) (problems []problem) {
	seen := make([]bool, len(def.Tins))
	for _, o := range overrides {
		i, err := def.TinIndex(o.Name)
		name := tins.CanonicalName(o.Name)
		switch {
		case err != nil:
			err = &invalidError{err}
		case seen[i]:
			err = invalid("tin %s is given twice", name)
		case o.Rate != nil && o.RateDefault:
			err = invalid("tin %s: both a rate and the default rate are asked for", name)
		case o.Ceil != nil && o.CeilNone:
			err = invalid("tin %s: both a ceil and none are asked for", name)
		case o.Rate != nil && o.Rate.IsZero(), o.Ceil != nil && o.Ceil.IsZero():
			err = invalid("tin %s: a rate is empty", name)
		case o.Rate != nil && o.Rate.IsUnlimited():
			err = invalid("tin %s: rate unlimited: a guarantee must have a size; without a cap is ceil:none", name)
		}
		if err != nil {
			problems = append(problems, problem{place{"tins", o.Name}, err})
			continue
		}
		seen[i] = true
	}
	return problems
}

func (s Spec) resolveBandwidth(link rates.Rate) (rates.Rate, error) {
	bandwidth, err := s.Bandwidth.Resolve(link)
	switch {
	case errors.Is(err, rates.ErrNoBase):
		return 0, invalid("bandwidth %w: the link of %s does not tell its speed; give an absolute rate, such as 1gbit", err, s.Device)
	case err != nil:
		return 0, invalid("bandwidth %w", err)
	case bandwidth == rates.Unlimited:
		return bandwidth, nil
	case bandwidth < rates.MinBandwidth:
		return 0, invalid("bandwidth %s is below the minimum of %s (a number without a unit is in bit/s)", describe(s.Bandwidth, bandwidth), rates.MinBandwidth)
	case bandwidth > rates.MaxBandwidth:
		return 0, invalid("bandwidth %s is above the maximum of %s", describe(s.Bandwidth, bandwidth), rates.MaxBandwidth)
	}
	return bandwidth, nil
}

// resolve applies o to what the preset gives its tin.
func (o TinOverride) resolve(tin rates.TinConfig, bandwidth rates.Rate) (rates.TinConfig, error) {
	if o.Ceil != nil {
		ceil, err := resolveOfBandwidth(tin.Name, "ceil", *o.Ceil, bandwidth)
		if err != nil {
			return tin, err
		}
		if ceil < rates.Slowest {
			return tin, invalid("tin %s: ceil %s is below %s, the slowest rate that can be held", tin.Name, describe(*o.Ceil, ceil), rates.Slowest)
		}
		if ceil < bandwidth {
			tin.Ceil = ceil
		}
		tin.Rate = min(tin.Rate, ceil)
	}
	if o.Rate != nil {
		rate, err := resolveOfBandwidth(tin.Name, "rate", *o.Rate, bandwidth)
		if err != nil {
			return tin, err
		}
		if rate > bandwidth {
			return tin, invalid("tin %s: rate %s is above the bandwidth of %s", tin.Name, describe(*o.Rate, rate), bandwidth)
		}
		if rate > tin.Ceil {
			return tin, invalid("tin %s: rate %s is above its ceil of %s", tin.Name, describe(*o.Rate, rate), tin.Ceil)
		}
		tin.Rate, tin.Explicit = rate, true
	}
	return tin, nil
}

func resolveOfBandwidth(tin, key string, v rates.Value, bandwidth rates.Rate) (rates.Rate, error) {
	r, err := v.Resolve(bandwidth)
	switch {
	case errors.Is(err, rates.ErrUnlimitedBase):
		return 0, invalid("tin %s: %s %w: the bandwidth is unlimited; give an absolute rate", tin, key, err)
	case err != nil:
		return 0, invalid("tin %s: %s %w", tin, key, err)
	}
	return r, nil
}

// checkGuarantees checks that the guarantees that the user set fit in the bandwidth together. The
// default tin is left out: it has what the others do not use. No rate is above the bandwidth here,
// so the sum cannot overflow.
func checkGuarantees(cfg rates.Config, def tins.Def) error {
	if cfg.Bandwidth == rates.Unlimited {
		return nil
	}
	var sum rates.Rate
	var parts []string
	for _, i := range def.DisplayOrder {
		if tin := cfg.Tins[i]; tin.Explicit && i != cfg.DefaultTin {
			sum += tin.Rate
			parts = append(parts, tin.Name+" "+tin.Rate.String())
		}
	}
	if sum > cfg.Bandwidth {
		return invalid("the tins' guarantees (%s) add up to %s, above the bandwidth of %s", strings.Join(parts, ", "), sum, cfg.Bandwidth)
	}
	return nil
}

// describe writes a value, and what it came to when that is not plain from it.
func describe(v rates.Value, r rates.Rate) string {
	if v.IsPercent() {
		return v.String() + " (" + r.String() + ")"
	}
	return v.String()
}

// Change is what can be changed while traffic flows. Nil, or no override, leaves things as they are.
type Change struct {
	Bandwidth *rates.Value  `json:"bandwidth,omitempty"`
	Tins      []TinOverride `json:"tins,omitempty"`
	Split     *rates.Split  `json:"split,omitempty"`
	Isolation *Isolation    `json:"isolation,omitempty"`
	// Framing takes the place of all that was said about the line; MPUBytes and Cells then change
	// a part of it.
	Framing  *framing.Framing `json:"framing,omitempty"`
	MPUBytes *int             `json:"mpu_bytes,omitempty"`
	Cells    *framing.Cells   `json:"cells,omitempty"`
	// Map takes the place of all rules.
	Map        *[]tins.Rule   `json:"map,omitempty"`
	FwmarkMask *uint32        `json:"fwmark_mask,omitempty"`
	InnerDSCP  *bool          `json:"inner_dscp,omitempty"`
	Wash       *bool          `json:"wash,omitempty"`
	WholeGSO   *bool          `json:"whole_gso,omitempty"`
	RTT        *time.Duration `json:"rtt_ns,omitempty"`
	OnDrift    *OnDrift       `json:"on_drift,omitempty"`
	// Replace allows, from now on, to replace a qdisc that is not the kernel's default.
	Replace bool `json:"replace,omitempty"`
}

// Empty tells whether c changes nothing.
func (c Change) Empty() bool { return reflect.DeepEqual(c, Change{}) }

// Apply is s with the change made, validated. s stays as it is. An override changes only the
// settings that it gives; the others of its tin stay. The overrides of the result are in the order of
// the preset, under canonical names, without those that say nothing.
func (s Spec) Apply(c Change) (Spec, error) {
	def, err := tins.Lookup(string(s.Preset))
	if err != nil {
		return Spec{}, &invalidError{err}
	}
	for _, overrides := range [][]TinOverride{s.Tins, c.Tins} {
		if err := checkOverrides(def, overrides); err != nil {
			return Spec{}, err
		}
	}
	set(&s.Bandwidth, c.Bandwidth)
	set(&s.Split, c.Split)
	set(&s.Isolation, c.Isolation)
	set(&s.Framing, c.Framing)
	set(&s.Framing.MPUBytes, c.MPUBytes)
	set(&s.Framing.Cells, c.Cells)
	set(&s.Map, c.Map)
	set(&s.FwmarkMask, c.FwmarkMask)
	set(&s.InnerDSCP, c.InnerDSCP)
	set(&s.Wash, c.Wash)
	set(&s.WholeGSO, c.WholeGSO)
	set(&s.RTT, c.RTT)
	set(&s.OnDrift, c.OnDrift)
	s.Replace = s.Replace || c.Replace
	if s.Tins, err = mergeOverrides(def, s.Tins, c.Tins); err != nil {
		return Spec{}, err
	}
	if err := s.Validate(); err != nil {
		return Spec{}, err
	}
	return s, nil
}

// set puts a changed value into its place.
func set[T any](place, changed *T) {
	if changed != nil {
		*place = *changed
	}
}

// ChangeTo is the change that makes s what to is, as far as that can be while traffic flows: what to
// does not override goes back to its default. Tins of another preset cannot be changed to.
func (s Spec) ChangeTo(to Spec) (Change, error) {
	if s.Preset != to.Preset {
		return Change{}, invalid("%s is attached with %s, and tins cannot change under traffic: detach it first to have %s", s.Device, s.Preset, to.Preset)
	}
	if to.Flows != 0 && to.Flows != s.Flows {
		return Change{}, invalid("%s is attached with room for %d flows a queue and tin, and that cannot change under traffic: detach it first to have %d", s.Device, s.Flows, to.Flows)
	}
	rules := append([]tins.Rule{}, to.Map...) // an empty list in JSON, as null would change nothing
	change := Change{
		Bandwidth:  &to.Bandwidth,
		Tins:       slices.Clone(to.Tins),
		Split:      &to.Split,
		Isolation:  &to.Isolation,
		Framing:    &to.Framing,
		Map:        &rules,
		FwmarkMask: &to.FwmarkMask,
		InnerDSCP:  &to.InnerDSCP,
		Wash:       &to.Wash,
		WholeGSO:   &to.WholeGSO,
		RTT:        &to.RTT,
		OnDrift:    &to.OnDrift,
		Replace:    to.Replace,
	}
	for _, o := range s.Tins {
		change.Tins = withDefaults(change.Tins, o)
	}
	return change, nil
}

// withDefaults adds to overrides that what o sets for its tin, and they do not, goes back to its
// default.
func withDefaults(overrides []TinOverride, o TinOverride) []TinOverride {
	i := slices.IndexFunc(overrides, func(t TinOverride) bool { return t.Name == o.Name })
	if i < 0 {
		i = len(overrides)
		overrides = append(overrides, TinOverride{Name: o.Name})
	}
	t := &overrides[i]
	t.RateDefault = t.RateDefault || o.Rate != nil && t.Rate == nil
	t.CeilNone = t.CeilNone || o.Ceil != nil && t.Ceil == nil
	return overrides
}

// mergeOverrides gives the overrides of base with those of change on top.
func mergeOverrides(def tins.Def, base, change []TinOverride) ([]TinOverride, error) {
	merged := make([]TinOverride, len(def.Tins))
	for _, o := range slices.Concat(base, change) {
		i, err := def.TinIndex(o.Name)
		if err != nil {
			return nil, &invalidError{err}
		}
		m := &merged[i]
		if o.RateDefault {
			m.Rate = nil
		} else {
			m.Rate = cmp.Or(o.Rate, m.Rate)
		}
		if o.CeilNone || (o.Ceil != nil && o.Ceil.IsUnlimited()) {
			m.Ceil = nil
		} else {
			m.Ceil = cmp.Or(o.Ceil, m.Ceil)
		}
	}
	var overrides []TinOverride
	for i, m := range merged {
		if m.Rate != nil || m.Ceil != nil {
			m.Name = def.Tins[i].Name
			overrides = append(overrides, m)
		}
	}
	return overrides, nil
}
