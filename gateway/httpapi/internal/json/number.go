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

// number reads the text of a number. The caller has asked Kind.
func (s *Scanner) number() (number, error) {
	n := number{start: s.pos, integer: true, exact: true}
	if s.at(s.pos) == '-' {
		n.neg = true
		s.pos++
	}
	switch c := s.at(s.pos); {
	case c == '0':
		s.pos++
	case c >= '1' && c <= '9':
		s.digits(&n, 0)
	default:
		return n, s.special(&n)
	}
	if s.at(s.pos) == '.' {
		s.pos++
		n.integer = false
		if s.digits(&n, -1) == 0 {
			return n, s.syntax(textFraction, s.pos)
		}
	}
	if c := s.at(s.pos); c == 'e' || c == 'E' {
		n.integer = false
		if err := s.exponent(&n); err != nil {
			return n, err
		}
	}
	n.end = s.pos
	return n, nil
}

// digits adds digits to the mantissa; shift is -1 behind the point. It returns how
// many there were.
func (s *Scanner) digits(n *number, shift int) int {
	const most = (math.MaxUint64 - 9) / 10
	i := s.pos
	for i < len(s.data) {
		d := s.data[i] - '0'
		if d > 9 {
			break
		}
		switch {
		case n.exact && n.mant <= most:
			n.mant = n.mant*10 + uint64(d)
			n.exp += shift
		case n.exact && shift == 0 && n.mant == math.MaxUint64/10 && d <= 5:
			n.mant = n.mant*10 + uint64(d)
		default:
			n.exact, n.integer = false, false
		}
		i++
	}
	count := i - s.pos
	s.pos = i
	return count
}

func (s *Scanner) exponent(n *number) error {
	s.pos++
	neg := false
	if c := s.at(s.pos); c == '+' || c == '-' {
		neg = c == '-'
		s.pos++
	}
	start, e := s.pos, 0
	for ; s.at(s.pos) >= '0' && s.at(s.pos) <= '9'; s.pos++ {
		if e < 1<<20 {
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
	text := s.data[n.start:n.end]
	f, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), 64)
	if errors.Is(err, strconv.ErrRange) && math.IsInf(f, 0) {
		return 0, s.syntax(textBig, n.start)
	}
	return f, nil
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
