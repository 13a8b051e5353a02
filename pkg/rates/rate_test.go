// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestRateString(t *testing.T) {
	for rate, want := range map[Rate]string{
		0:                  "0bit",
		1:                  "1bit",
		999:                "999bit",
		1000:               "1kbit",
		1001:               "1.001kbit",
		64 * Kbit:          "64kbit",
		1_500_000:          "1.5mbit",
		1_234_567:          "1234.567kbit",
		2 * Gbit:           "2gbit",
		2_500 * Mbit:       "2.5gbit",
		1_000_050 * Kbit:   "1000.05mbit",
		400 * Gbit:         "400gbit",
		Tbit:               "1tbit",
		Unlimited:          "unlimited",
		Unlimited - 1:      "18446744073709551.614kbit",
		1_000_000_001:      "1000000.001kbit",
		1 << 20:            "1048.576kbit",
		10 * Mbit / 3 * 10: "33333.33kbit",
	} {
		if got := rate.String(); got != want {
			t.Errorf("Rate(%d).String() = %q, want %q", uint64(rate), got, want)
		}
	}
}

func TestBytesPerSecond(t *testing.T) {
	if got := (8 * Mbit).BytesPerSecond(); got != 1e6 {
		t.Errorf("8mbit = %v bytes/s, want 1e6", got)
	}
	if got := Rate(1).BytesPerSecond(); got != 0.125 {
		t.Errorf("1bit = %v bytes/s, want 0.125", got)
	}
	if got := Unlimited.BytesPerSecond(); !math.IsInf(got, 1) {
		t.Errorf("unlimited = %v bytes/s, want +Inf", got)
	}
}

func TestParseValueAbsolute(t *testing.T) {
	for text, want := range map[string]Rate{
		"1":                                   1,
		"64000":                               64 * Kbit,
		"999bit":                              999,
		"64kbit":                              64 * Kbit,
		"64KBit":                              64 * Kbit,
		"100Mbit":                             100 * Mbit,
		" 100 mbit ":                          100 * Mbit,
		"2.5gbit":                             2500 * Mbit,
		"2.50gbit":                            2500 * Mbit,
		"0.5mbit":                             500 * Kbit,
		"007mbit":                             7 * Mbit,
		"1tbit":                               Tbit,
		"1kibit":                              1024,
		"1Mibit":                              1 << 20,
		"1GIBIT":                              1 << 30,
		"1tibit":                              1 << 40,
		"0.001kibit":                          1, // 1.024
		"1.5bit":                              2, // to the nearest
		"0.123456789gbit":                     123_456_789,
		"unlimited":                           Unlimited,
		"UNLIMITED":                           Unlimited,
		"18446744073709551614":                Unlimited - 1,
		"1.00000000000000000000000000000gbit": Gbit,
	} {
		got, err := ParseValue(text)
		if err != nil || got != Absolute(want) {
			t.Errorf("ParseValue(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
}

func TestParseValuePercent(t *testing.T) {
	for text, want := range map[string]string{
		"50%": "50%", "100%": "100%", "12.5%": "12.5%", "0.001%": "0.001%", "50 %": "50%", "33.3330%": "33.333%",
	} {
		got, err := ParseValue(text)
		if err != nil || !got.IsPercent() || got.String() != want {
			t.Errorf("ParseValue(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
}

// Each refusal says what is wrong, or what to write instead.
func TestParseValueRefuses(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", []string{"is empty"}},
		{"   ", []string{"is empty"}},
		{"0", []string{"above zero"}},
		{"0mbit", []string{"above zero"}},
		{"0.000gbit", []string{"above zero"}},
		{"0%", []string{"above zero"}},
		{"-5mbit", []string{"above zero"}},
		{"-5%", []string{"above zero"}},
		{"0.1bit", []string{"less than 1bit"}},
		{"+5mbit", []string{"want a number"}},
		{"nan", []string{"want a number"}},
		{"inf", []string{"want a number"}},
		{"mbit", []string{"want a number"}},
		{".5mbit", []string{"want a number"}},
		{"5.mbit", []string{"want a number"}},
		{"1.2.3mbit", []string{"want a number"}},
		{"%", []string{"want a number"}},
		{"1e9", []string{`unknown unit "e9"`, "gbit"}},
		{"1e9bit", []string{`unknown unit "e9bit"`}},
		{"0x10", []string{`unknown unit "x10"`}},
		{"1,5mbit", []string{`unknown unit ",5mbit"`}},
		{"10mbit 5", []string{"unknown unit"}},
		{"10%%", []string{"unknown unit"}},
		{"10unlimited", []string{"unknown unit"}},
		{"100.001%", []string{"at most 100%"}},
		{"101%", []string{"at most 100%"}},
		{"99999999999999999999999%", []string{"at most 100%"}},
		{"1.0001%", []string{"three decimals"}},
		{"18446744073709551615", []string{"64 bits"}},
		{"18446744073709551616", []string{"64 bits"}},
		{"18446745tbit", []string{"64 bits"}},
		{"99999999999999999999999999gbit", []string{"64 bits"}},
		{strings.Repeat("9", 65), []string{"65 characters"}},
		{"100mbps", []string{"ambiguous", "bytes per second (800mbit)", "bits per second (100mbit)"}},
		{"100Mbps", []string{"800mbit", "100mbit"}},
		{"1.25MBps", []string{"10mbit", "1.25mbit"}},
		{"0.01gbps", []string{"0.08gbit", "0.01gbit"}},
		{"5bps", []string{"40bit", "5bit"}},
		{"5kibps", []string{"40kibit", "5kibit"}},
		{"100mb", []string{`"mb"`, "100mbit", "800mbit"}},
		{"100m", []string{`"m"`, "100mbit", "800mbit"}},
		{"1g", []string{"1gbit", "8gbit"}},
		{"2k", []string{"2kbit"}},
		{"3t", []string{"3tbit"}},
		{"4mib", []string{"4mibit"}},
		{"4mi", []string{"4mibit"}},
		{"4mb/s", []string{"4mbit", "32mbit"}},
		{"9b", []string{"9bit", "72bit"}},
		{"100mbit/s", []string{"write 100mbit"}},
		{"100mbits", []string{"unknown unit"}},
		{"100 apples", []string{`unknown unit "apples"`, "kibit"}},
	} {
		v, err := ParseValue(c.text)
		if err == nil {
			t.Errorf("ParseValue(%q) = %v, want an error", c.text, v)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("ParseValue(%q): %q does not say %q", c.text, err, want)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		text string
		base Rate
		want Rate
	}{
		{"10mbit", 0, 10 * Mbit},
		{"10mbit", Unlimited, 10 * Mbit},
		{"unlimited", Gbit, Unlimited},
		{"50%", 10 * Gbit, 5 * Gbit},
		{"100%", 400 * Gbit, 400 * Gbit},
		{"100%", Unlimited - 1, Unlimited - 1},
		{"33.333%", Gbit, 333_330_000},
		{"0.001%", Mbit, 10},
	} {
		v, err := ParseValue(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.Resolve(c.base); err != nil || got != c.want {
			t.Errorf("%s of %v = %v, %v; want %v", c.text, c.base, got, err, c.want)
		}
	}
	half, err := ParseValue("50%")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := half.Resolve(0); !errors.Is(err, ErrNoBase) {
		t.Errorf("50%% of an unknown rate: %v, want ErrNoBase", err)
	}
	if _, err := half.Resolve(Unlimited); !errors.Is(err, ErrUnlimitedBase) {
		t.Errorf("50%% of unlimited: %v, want ErrUnlimitedBase", err)
	}
	if _, err := half.Resolve(1); err == nil {
		t.Error("50% of 1bit: want an error")
	}
	if _, err := (Value{}).Resolve(Gbit); err == nil {
		t.Error("the zero Value resolves")
	}
}

func TestValueJSON(t *testing.T) {
	type holder struct {
		Value Value `json:"value,omitzero"`
	}
	for text, want := range map[string]string{
		"1500kbit": `{"value":"1.5mbit"}`, "12.5%": `{"value":"12.5%"}`, "Unlimited": `{"value":"unlimited"}`,
	} {
		v, err := ParseValue(text)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(holder{v})
		if err != nil || string(encoded) != want {
			t.Errorf("%s: marshal = %s, %v; want %s", text, encoded, err, want)
		}
		var back holder
		if err := json.Unmarshal(encoded, &back); err != nil || back.Value != v {
			t.Errorf("%s: unmarshal = %v, %v", text, back.Value, err)
		}
	}
	if encoded, err := json.Marshal(holder{}); err != nil || string(encoded) != "{}" {
		t.Errorf("no value: marshal = %s, %v; want {}", encoded, err)
	}
	if _, err := json.Marshal(Value{}); err == nil {
		t.Error("the zero Value marshals")
	}
	v := Absolute(5)
	if err := json.Unmarshal([]byte(`"10mbps"`), &v); err == nil || v != Absolute(5) {
		t.Errorf("a refused text gave %v, %v; want an error and the old value", v, err)
	}
}

// rateGen draws rates of every magnitude.
func rateGen() *rapid.Generator[Rate] {
	return rapid.Custom(func(t *rapid.T) Rate {
		shift := rapid.IntRange(0, 63).Draw(t, "shift")
		return Rate(max(rapid.Uint64().Draw(t, "bits")>>shift, 1))
	})
}

func TestValueRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := Absolute(rateGen().Draw(t, "rate"))
		if rapid.Bool().Draw(t, "percent") {
			v = Value{milliPercent: rapid.Uint32Range(1, hundredPercent).Draw(t, "milliPercent")}
		}
		back, err := ParseValue(v.String())
		if err != nil || back != v {
			t.Fatalf("ParseValue(%q) = %v, %v; want %#v", v, back, err, v)
		}
	})
}

// The percentage of a rate is never above it, and grows with the percentage.
func TestResolvePercentBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := Rate(rapid.Uint64Range(uint64(MinBandwidth), uint64(Unlimited-1)).Draw(t, "base"))
		small := rapid.Uint32Range(2, hundredPercent).Draw(t, "small")
		large := rapid.Uint32Range(small, hundredPercent).Draw(t, "large")
		a, errA := Value{milliPercent: small}.Resolve(base)
		b, errB := Value{milliPercent: large}.Resolve(base)
		if errA != nil || errB != nil || a > b || b > base {
			t.Fatalf("of %v: %v (%v), %v (%v)", base, a, errA, b, errB)
		}
	})
}

func FuzzParseValue(f *testing.F) {
	for _, seed := range []string{"1", "2.5gbit", "50%", "unlimited", "100mbps", "4mb", "-1", "0.0001%", "1e9", "18446744073709551615", ". %", "9b/s"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseValue(text)
		if err != nil {
			if v != (Value{}) {
				t.Fatalf("ParseValue(%q) = %v with error %v", text, v, err)
			}
			return
		}
		if v.IsZero() {
			t.Fatalf("ParseValue(%q) accepted a zero rate", text)
		}
		if back, err := ParseValue(v.String()); err != nil || back != v {
			t.Fatalf("ParseValue(%q) = %v, which reads back as %v, %v", text, v, back, err)
		}
	})
}

func TestNsPerByteQ24(t *testing.T) {
	for _, c := range []struct {
		rate Rate
		want uint64
	}{
		{8 * Gbit, 1 << 24}, // one byte a nanosecond
		{8 * Mbit, 1000 << 24},
		{Slowest, 1_000_000 << 24},
		{Unlimited, 0},
		{0, MaxNsPerByteQ24},
		{1, MaxNsPerByteQ24},
		{7 * Kbit, MaxNsPerByteQ24},
		{Unlimited - 1, 1},
	} {
		if got := NsPerByteQ24(c.rate); got != c.want {
			t.Errorf("NsPerByteQ24(%v) = %d, want %d", c.rate, got, c.want)
		}
	}
	if got := RateFromNsPerByteQ24(0); got != Unlimited {
		t.Errorf("RateFromNsPerByteQ24(0) = %v, want unlimited", got)
	}
	if Slowest < RateFromNsPerByteQ24(MaxNsPerByteQ24) {
		t.Errorf("the slowest rate, %v, is below the end of the fixed point", Slowest)
	}
	for _, rate := range []Rate{MinBandwidth, 600 * Mbit, Gbit, 10 * Gbit, 100 * Gbit, MaxBandwidth} {
		back := RateFromNsPerByteQ24(NsPerByteQ24(rate))
		if relative := math.Abs(float64(back)-float64(rate)) / float64(rate); relative > 1e-5 {
			t.Errorf("%v comes back as %v: off by %g", rate, back, relative)
		}
	}
}

func TestNsPerByteQ24Error(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := Rate(rapid.Uint64Range(uint64(Slowest), uint64(MaxBandwidth)).Draw(t, "rate"))
		exact := 8e9 * (1 << 24) / float64(rate)
		if relative := math.Abs(float64(NsPerByteQ24(rate))-exact) / exact; relative > 2e-6 {
			t.Fatalf("NsPerByteQ24(%v) is off by %g", rate, relative)
		}
		if NsPerByteQ24(rate+1) > NsPerByteQ24(rate) {
			t.Fatalf("NsPerByteQ24 grows from %v to the next rate", rate)
		}
	})
}
