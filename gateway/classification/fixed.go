package classification

import (
	"math"
	"math/bits"
	"strconv"
)

// strconv prints a fixed number of decimals by shifting decimal digits one by one, which takes 6 µs for a large
// number. What follows is exact too, rounds as C's printf does, and takes a tenth of that or less.

const (
	decimals = 6
	scale    = 1_000_000 // 10^decimals
	mantissa = 52        // bits of a float64 behind its leading one
)

// fixedSize is the size of what appendFixed writes, or up to two bytes more.
func fixedSize(f float64) int {
	if f != f || math.IsInf(f, 0) {
		return len("-inf")
	}
	_, exponent := math.Frexp(f) // |f| < 2^exponent
	whole := 1
	if exponent > 0 {
		whole = exponent*30103/100000 + 1 // 0.30103 is just over log10(2); rounding gives 2^exponent at most
	}
	return 1 + whole + 1 + decimals
}

// appendFixed prints as C's %f does, NaN and infinities included.
func appendFixed(b []byte, f float64) []byte {
	switch {
	case f != f:
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if math.Signbit(f) {
		b = append(b, '-')
	}
	u := math.Float64bits(f)
	m, e := u&(1<<mantissa-1), int(u>>mantissa&0x7ff)
	if e == 0 {
		e = 1 // subnormal
	} else {
		m |= 1 << mantissa
	}
	e -= 1023 + mantissa // |f| = m × 2^e
	if e >= 0 {
		return append(appendWhole(b, m, e), ".000000"...)
	}
	whole, fraction := split(m, -e)
	b = append(strconv.AppendUint(b, whole, 10), '.')
	return appendDigits(b, fraction, decimals)
}

// split is m / 2^shift, shift ≥ 1 and m below 2^53, as a whole number and so many millionths, rounded to the nearest,
// ties to even.
func split(m uint64, shift int) (whole, fraction uint64) {
	if shift < 64 {
		whole, m = m>>shift, m&(1<<shift-1)
	}
	hi, lo := bits.Mul64(m, scale) // below 2^73, and below 2^shift × scale
	if shift > 74 {
		return whole, 0 // less than half of a millionth
	}
	var cut uint64 // the bits that are cut off, the first one at the top; what does not fit is or-ed into the last
	switch {
	case shift < 64:
		fraction, cut = hi<<(64-shift)|lo>>shift, lo<<(64-shift)
	case shift == 64:
		fraction, cut = hi, lo
	default:
		fraction, cut = hi>>(shift-64), hi<<(128-shift)
		if lo != 0 {
			cut |= 1
		}
	}
	const half = 1 << 63
	if cut > half || cut == half && fraction&1 == 1 {
		fraction++
	}
	if fraction == scale {
		return whole + 1, 0
	}
	return whole, fraction
}

// appendDigits writes the last n decimal digits of v, n ≤ limbDigits.
func appendDigits(b []byte, v uint64, n int) []byte {
	var d [limbDigits]byte
	for i := len(d) - 1; i >= 0; i-- {
		d[i] = '0' + byte(v%10)
		v /= 10
	}
	return append(b, d[len(d)-n:]...)
}

// limbBase is the base of the limbs in which large whole numbers are computed, and limbDigits its decimals.
const (
	limbBase   = 1_000_000_000
	limbDigits = 9
	maxLimbs   = 36 // 2^1024 has 309 digits
	step       = 32 // bits that one multiplication moves
)

// appendWhole prints m × 2^e, e ≥ 0.
func appendWhole(b []byte, m uint64, e int) []byte {
	var limbs [maxLimbs]uint64
	n := 0
	for ; m > 0; m /= limbBase {
		limbs[n] = m % limbBase
		n++
	}
	for ; e > 0; e -= step {
		by := uint64(1) << min(e, step)
		carry := uint64(0)
		for i := range n {
			v := limbs[i]*by + carry // below 2^30 × 2^32 + 2^33
			limbs[i], carry = v%limbBase, v/limbBase
		}
		for ; carry > 0; carry /= limbBase {
			limbs[n] = carry % limbBase
			n++
		}
	}
	b = strconv.AppendUint(b, limbs[n-1], 10)
	for i := n - 2; i >= 0; i-- {
		b = appendDigits(b, limbs[i], limbDigits)
	}
	return b
}
