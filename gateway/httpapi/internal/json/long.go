package json

import (
	"strconv"
	"unsafe"
)

const (
	// direct is the longest text that strconv is given as it stands. Of longer ones it loses
	// digits in front of the point, from the 801st on, and it reads four or five digits of an
	// exponent: 1000…e-900 and 0.000…1e20001 come out as other numbers.
	direct = 400
	// keepDigits is how many digits of a longer one are kept. The middle of two doubles has
	// 768 at most, so that one digit more stands for all the others.
	keepDigits = 780
	// farAway is an exponent that no double comes near to, with keepDigits digits.
	farAway = 5000
)

// round gives the nearest double (bits 64) or single (bits 32) of a number that is not special.
func (s *Scanner) round(n number, bits int) (float64, error) {
	text := s.data[n.start:n.end]
	if len(text) > direct {
		text = s.shortened(text, n.exp)
	}
	return strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), bits)
}

// shortened writes a number of at most keepDigits digits and one more that rounds as text does.
// exp is the power of ten for all of its digits. It is valid until the next call.
func (s *Scanner) shortened(text []byte, exp int) []byte {
	b := s.long[:0]
	if text[0] == '-' {
		b = append(b, '-')
	}
	first, more := len(b), false
	for _, c := range text {
		switch {
		case c|0x20 == 'e':
			return s.ended(b, exp, more)
		case c < '0' || c > '9' || c == '0' && len(b) == first:
		case len(b)-first < keepDigits:
			b = append(b, c)
		default:
			more = more || c != '0'
			exp++
		}
	}
	return s.ended(b, exp, more)
}

// ended writes what follows the digits of a shortened number. more says that they are not all.
func (s *Scanner) ended(b []byte, exp int, more bool) []byte {
	if more {
		b = append(b, '1')
		exp--
	}
	if len(b) == 0 || b[len(b)-1] == '-' {
		b, exp = append(b, '0'), 0
	}
	b = strconv.AppendInt(append(b, 'e'), int64(max(min(exp, farAway), -farAway)), 10)
	s.long = b
	return b
}
