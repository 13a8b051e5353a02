// SPDX-License-Identifier: BSD-2-Clause

package rates

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strings"
)

// What a percentage lacks when it cannot be resolved.
var (
	// ErrNoBase: the rate that the percentage is of is not known.
	ErrNoBase = errors.New("a percentage of an unknown rate")
	// ErrUnlimitedBase: the rate that the percentage is of is unlimited.
	ErrUnlimitedBase = errors.New("a percentage of an unlimited rate")
)

// hundredPercent is 100 % in the unit of Value.milliPercent.
const hundredPercent = 100_000

// Value is a rate as a user gives it: absolute, a percentage of another rate, or unlimited.
// The zero Value is none of them: it means "not given". Values are comparable with ==.
type Value struct {
	rate         Rate   // absolute; used when milliPercent is 0
	milliPercent uint32 // thousandths of a percent
}

// Absolute is the Value of the rate r, which may be Unlimited.
func Absolute(r Rate) Value { return Value{rate: r} }

// IsZero tells whether v was never given.
func (v Value) IsZero() bool { return v == Value{} }

// IsPercent tells whether v is a percentage, which only Resolve turns into a rate.
func (v Value) IsPercent() bool { return v.milliPercent != 0 }

// IsUnlimited tells whether v is "unlimited".
func (v Value) IsUnlimited() bool { return v == Absolute(Unlimited) }

// Equal is ==, for packages that compare by method.
func (v Value) Equal(w Value) bool { return v == w }

// Resolve turns v into a rate. A percentage is taken of base, rounded down; base 0 stands for
// a rate that nobody knows. A result of 0 bit/s is an error.
func (v Value) Resolve(base Rate) (Rate, error) {
	switch {
	case v.IsZero():
		return 0, errors.New("no rate given")
	case !v.IsPercent():
		return v.rate, nil
	case base == 0:
		return 0, fmt.Errorf("%s: %w", v, ErrNoBase)
	case base == Unlimited:
		return 0, fmt.Errorf("%s: %w", v, ErrUnlimitedBase)
	}
	hi, lo := bits.Mul64(uint64(base), uint64(v.milliPercent))
	r, _ := bits.Div64(hi, lo, hundredPercent)
	if r == 0 {
		return 0, fmt.Errorf("%s of %s is less than 1bit", v, base)
	}
	return Rate(r), nil
}

// String writes v so that [ParseValue] reads it back; the zero Value is "".
func (v Value) String() string {
	switch {
	case v.IsZero():
		return ""
	case v.IsPercent():
		return decimal(uint64(v.milliPercent), 3) + "%"
	}
	return v.rate.String()
}

// MarshalText writes v as String does. The zero Value is an error: leave the field out (omitzero).
func (v Value) MarshalText() ([]byte, error) {
	if v.IsZero() {
		return nil, errors.New("marshal rate: no rate given")
	}
	return []byte(v.String()), nil
}

// UnmarshalText is ParseValue.
func (v *Value) UnmarshalText(text []byte) error {
	parsed, err := ParseValue(string(text))
	if err != nil {
		return fmt.Errorf("rate %w", err)
	}
	*v = parsed
	return nil
}

const (
	grammar = `a number with bit, kbit, mbit, gbit, tbit (1000s), kibit, mibit, gibit, tibit (1024s) or %, or "unlimited"`

	// maxRateLength bounds the text of a rate; the longest one that means something has 27 bytes.
	maxRateLength = 64
)

// unitBits is the size of each unit in bits per second. A bare number is in bits per second.
var unitBits = map[string]uint64{
	"": 1, "bit": 1,
	"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
	"kibit": 1 << 10, "mibit": 1 << 20, "gibit": 1 << 30, "tibit": 1 << 40,
}

// ParseValue reads a rate: a decimal number and a unit (bit, kbit, mbit, gbit, tbit are powers of
// 1000; kibit, mibit, gibit, tibit of 1024; none is bit/s), a percentage up to 100 with at most three
// decimals, or "unlimited". Case does not matter. A fraction of a bit is rounded to the nearest.
//
// The forms in bps, and those without "bit", are refused: in tc(8) "mbps" means megabytes,
// elsewhere megabits. The error says what to write instead; it opens with the quoted text, so that
// callers can put the name of the field before it.
func ParseValue(text string) (Value, error) {
	if len(text) > maxRateLength {
		return Value{}, fmt.Errorf("%d characters are too many: want %s", len(text), grammar)
	}
	s := strings.ToLower(strings.TrimSpace(text))
	switch {
	case s == "":
		return Value{}, fmt.Errorf("%q is empty: want %s", text, grammar)
	case s == "unlimited":
		return Absolute(Unlimited), nil
	case strings.HasPrefix(s, "-"):
		return Value{}, fmt.Errorf("%q: must be above zero", text)
	}
	end := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(s)
	}
	n, ok := parseNumber(s[:end])
	if !ok {
		return Value{}, fmt.Errorf("%q: want %s", text, grammar)
	}
	unit := strings.TrimSpace(s[end:])
	if unit == "%" {
		v, err := n.percent()
		if err != nil {
			return Value{}, fmt.Errorf("%q: %w", text, err)
		}
		return v, nil
	}
	size, ok := unitBits[unit]
	if !ok {
		return Value{}, fmt.Errorf("%q: %s", text, n.unitHint(unit))
	}
	r := n.times(size, true)
	switch {
	case r.Sign() == 0 && n.digits.Sign() == 0:
		return Value{}, fmt.Errorf("%q: must be above zero", text)
	case r.Sign() == 0:
		return Value{}, fmt.Errorf("%q: less than 1bit", text)
	case !r.IsUint64() || Rate(r.Uint64()) == Unlimited:
		return Value{}, fmt.Errorf("%q: does not fit in 64 bits", text)
	}
	return Absolute(Rate(r.Uint64())), nil
}

// number is the decimal digits / 10^places.
type number struct {
	digits *big.Int
	places int
}

// parseNumber reads digits with at most one decimal point, and a digit on each side of it.
func parseNumber(s string) (number, bool) {
	whole, fraction, hasPoint := strings.Cut(s, ".")
	if whole == "" || (hasPoint && fraction == "") || strings.Contains(fraction, ".") {
		return number{}, false
	}
	digits, ok := new(big.Int).SetString(whole+fraction, 10)
	return number{digits, len(fraction)}, ok
}

// times is n * factor as an integer, rounded to the nearest or down.
func (n number) times(factor uint64, nearest bool) *big.Int {
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n.places)), nil)
	product := new(big.Int).Mul(n.digits, new(big.Int).SetUint64(factor))
	if nearest {
		product.Add(product, new(big.Int).Rsh(scale, 1))
	}
	return product.Quo(product, scale)
}

// String writes n without trailing zeros.
func (n number) String() string {
	s := n.digits.String()
	if missing := n.places + 1 - len(s); missing > 0 {
		s = strings.Repeat("0", missing) + s
	}
	if n.places == 0 {
		return s
	}
	point := len(s) - n.places
	return strings.TrimRight(strings.TrimRight(s[:point]+"."+s[point:], "0"), ".")
}

// percent reads n as a percentage.
func (n number) percent() (Value, error) {
	milli := n.times(1000, false)
	exact := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n.places)), nil)
	exact.Mul(exact, milli)
	switch {
	case n.digits.Sign() == 0:
		return Value{}, errors.New("must be above zero")
	case exact.Cmp(new(big.Int).Mul(n.digits, big.NewInt(1000))) != 0:
		return Value{}, errors.New("a percentage has at most three decimals")
	case !milli.IsUint64() || milli.Uint64() > hundredPercent:
		return Value{}, errors.New("a percentage is at most 100%")
	}
	return Value{milliPercent: uint32(milli.Uint64())}, nil
}

// unitHint says what to write instead of n and a unit that is refused.
func (n number) unitHint(unit string) string {
	eight := number{new(big.Int).Mul(n.digits, big.NewInt(8)), n.places}
	prefix, bytesForm := strings.CutSuffix(unit, "bps")
	if bytesForm {
		if _, ok := unitBits[prefix+"bit"]; ok {
			return fmt.Sprintf("%q is ambiguous: tc reads it as bytes per second (%s%sbit), most others as bits per second (%s%sbit); write the one you mean",
				unit, eight, prefix, n, prefix)
		}
	}
	bare := strings.TrimSuffix(strings.TrimSuffix(unit, "/s"), "b")
	if _, ok := unitBits[bare+"bit"]; ok {
		return fmt.Sprintf("unit %q is not used here: write %s%sbit (or %s%sbit if you mean bytes)", unit, n, bare, eight, bare)
	}
	bare = strings.TrimSuffix(unit, "/s")
	if _, ok := unitBits[bare]; ok {
		return fmt.Sprintf("unit %q is not used here: write %s%s", unit, n, bare)
	}
	return fmt.Sprintf("unknown unit %q: want %s", unit, grammar)
}
