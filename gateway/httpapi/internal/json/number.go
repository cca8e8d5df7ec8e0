package json

import (
	"errors"
	"math"
	"strconv"
	"unsafe"
)

// Texts of values that are not what the reader asks for.
// Source: answers of the original server 2.51.
const (
	NotUint   = "attempt to access JSON non-unsigned-integer as unsigned-integer"
	NotInt    = "attempt to access JSON non-signed-integer as signed-integer"
	NotBool   = "attempt to access JSON non-boolean as boolean"
	NotString = "attempt to access JSON non-string as string"
	NotNumber = "attempt to access JSON non-number as double"
	NotObject = "attempt to get members for non-object"
	NotArray  = "attempt to access JSON non-array as array"
)

// number is a number read but not yet rounded.
type number struct {
	start, end int
	mant       uint64 // its digits, as long as they fit
	exp        int    // power of ten for mant
	neg        bool
	integer    bool // no fraction, no exponent, fits mant
	exact      bool // mant and exp hold all of it
	special    float64
	isSpecial  bool // NaN or infinite
}

// small says that the number surely is no larger than a double.
func (n *number) small() bool { return n.isSpecial || n.exact && n.exp < 280 }

// maxDigits always fit the mantissa.
const maxDigits = 19

// number reads the text of a number. The caller has asked Kind.
func (s *Scanner) number() (number, error) {
	n := number{start: s.pos}
	data, i := s.data, s.pos
	if i < len(data) && data[i] == '-' {
		n.neg = true
		i++
	}
	first := i
	var mant uint64
	for ; i < len(data); i++ {
		d := data[i] - '0'
		if d > 9 {
			break
		}
		mant = mant*10 + uint64(d)
		if i == first && d == 0 {
			i++ // a zero stands alone
			break
		}
	}
	count := i - first
	s.pos = i
	if count == 0 {
		return n, s.special(&n)
	}
	n.integer = true
	if i < len(data) && data[i] == '.' {
		n.integer = false
		i++
		point := i
		for ; i < len(data); i++ {
			d := data[i] - '0'
			if d > 9 {
				break
			}
			mant = mant*10 + uint64(d)
		}
		s.pos = i
		if i == point {
			return n, s.syntax(textFraction, i)
		}
		count += i - point
		n.exp = point - i
	}
	if i < len(data) && data[i]|0x20 == 'e' {
		n.integer = false
		if err := s.exponent(&n); err != nil {
			return n, err
		}
	}
	n.mant, n.exact, n.end = mant, count <= maxDigits, s.pos
	if !n.exact && n.integer {
		s.longInteger(&n)
	}
	return n, nil
}

// longInteger reads an integer of more digits than surely fit.
func (s *Scanner) longInteger(n *number) {
	text := s.data[n.start:n.end]
	if n.neg {
		text = text[1:]
	}
	u, err := strconv.ParseUint(unsafe.String(unsafe.SliceData(text), len(text)), 10, 64)
	n.mant, n.exact, n.integer = u, err == nil, err == nil
}

// farthest is more than a document has digits, which an exponent may make up for.
const farthest = 1 << 48

func (s *Scanner) exponent(n *number) error {
	s.pos++
	neg := false
	if c := s.at(s.pos); c == '+' || c == '-' {
		neg = c == '-'
		s.pos++
	}
	start, e := s.pos, 0
	for ; s.at(s.pos) >= '0' && s.at(s.pos) <= '9'; s.pos++ {
		if e < farthest {
			e = e*10 + int(s.at(s.pos)-'0')
		}
	}
	if s.pos == start {
		return s.syntax(textExponent, s.pos)
	}
	if neg {
		e = -e
	}
	n.exp += e
	return nil
}

// special reads NaN, Inf or Infinity behind an optional minus.
func (s *Scanner) special(n *number) error {
	word, value := "NaN", math.NaN()
	switch s.at(s.pos) {
	case 'N':
	case 'I':
		word, value = "Inf", math.Inf(1)
	default:
		return s.syntax(textValue, s.pos)
	}
	if err := s.word(word); err != nil {
		return err
	}
	if word == "Inf" && s.at(s.pos) == 'i' {
		if err := s.word("inity"); err != nil {
			return err
		}
	}
	if n.neg {
		value = -value
	}
	n.special, n.isSpecial, n.integer, n.end = value, true, false, s.pos
	return nil
}

// powers of ten that a double holds exactly.
var powers = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
	1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// float rounds the number to the nearest double, once.
func (s *Scanner) float(n number) (float64, error) {
	if n.isSpecial {
		return n.special, nil
	}
	if n.integer && n.mant == 0 {
		return 0, nil // the original reads -0 as the integer 0
	}
	if n.exact && n.mant < 1<<53 && n.exp >= -22 && n.exp <= 22 {
		f := float64(n.mant) // exact, and so is the power: one rounding
		if n.exp < 0 {
			f /= powers[-n.exp]
		} else {
			f *= powers[n.exp]
		}
		if n.neg {
			f = -f
		}
		return f, nil
	}
	f, err := s.round(n, 64)
	if errors.Is(err, strconv.ErrRange) && math.IsInf(f, 0) {
		return 0, s.syntax(textBig, n.start)
	}
	return f, nil
}

// single rounds the number to the nearest single, once; f is what float made of it. Rounding f
// again is the same unless f lies halfway between two singles, where what float rounded off
// decides. (The original does round twice, and is then off by a unit in the last place.)
func (s *Scanner) single(n number, f float64) float32 {
	const below = 29 // bits of a double's fraction that a single's has not
	halfway := math.Float64bits(f)&(1<<below-1) == 1<<(below-1)
	small := math.Abs(f) < 0x1p-126 && f != 0 // singles have fewer bits there
	if !halfway && !small || n.isSpecial {
		return float32(f)
	}
	once, err := s.round(n, 32)
	if err != nil {
		return float32(f) // out of range: an infinity
	}
	return float32(once)
}

// int is the number as a signed integer; false where it is none or does not fit.
func (n *number) int() (int64, bool) {
	switch {
	case !n.integer:
		return 0, false
	case !n.neg:
		return int64(n.mant), n.mant <= math.MaxInt64
	default:
		return -int64(n.mant), n.mant <= 1<<63
	}
}

// uint is the number as an unsigned integer; false where it is none or negative.
func (n *number) uint() (uint64, bool) {
	return n.mant, n.integer && (!n.neg || n.mant == 0)
}

// Uint reads an unsigned integer. A value of another kind is skipped and gives an
// Error with NotUint.
func (s *Scanner) Uint() (uint64, error) {
	if s.Kind() == Number {
		n, err := s.number()
		if err != nil {
			return 0, err
		}
		if u, ok := n.uint(); ok {
			return u, nil
		}
		if _, err := s.float(n); err != nil {
			return 0, err
		}
		return 0, &Error{Text: NotUint}
	}
	if err := s.Skip(); err != nil {
		return 0, err
	}
	return 0, &Error{Text: NotUint}
}

// Scalar is a number as it was written: an integer that fits an int64, one that fits
// only a uint64, or a double.
type Scalar struct {
	Int    int64
	Uint   uint64
	Double float64
	IsInt  bool
	IsUint bool // set for every integer that is not negative
}

// Num reads a number. The caller has asked Kind.
func (s *Scanner) Num() (Scalar, error) {
	s.space()
	n, err := s.number()
	if err != nil {
		return Scalar{}, err
	}
	var v Scalar
	if v.Double, err = s.float(n); err != nil {
		return Scalar{}, err
	}
	v.Int, v.IsInt = n.int()
	v.Uint, v.IsUint = n.uint()
	return v, nil
}
