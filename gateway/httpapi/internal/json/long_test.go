package json

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// reads gives the double and the single that a number is read as.
func reads(t *testing.T, text string) (float64, float32, error) {
	t.Helper()
	b, _, err := tensor("["+text+"]", infer.FP64, 1)
	c, _, err32 := tensor("["+text+"]", infer.FP32, 1)
	if err != nil || err32 != nil {
		return math.Inf(1), float32(math.Inf(1)), fmt.Errorf("%v, %v", err, err32)
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b)), math.Float32frombits(binary.LittleEndian.Uint32(c)), nil
}

// TestLongNumbers has numbers whose digits and exponents outweigh each other.
func TestLongNumbers(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for _, c := range []struct {
		text string
		want float64
	}{
		{"0." + zeros(100000) + "1e100001", 1},
		{"1" + zeros(100000) + "e-100000", 1},
		{"-25" + zeros(2000000) + "e-2000001", -2.5},
		{"0." + zeros(2000000) + "25E+2000001", 2.5},
		{"0." + zeros(20000) + "1e20001", 1},
		{"123" + zeros(798) + "e-798", 123},
		{"123" + zeros(900) + ".0e-900", 123},
		{"123" + zeros(9990) + "e-9990", 123},
		{"1" + zeros(100000) + "e-100400", 0},
		{"1" + zeros(1000) + "e-99999999999999999999", 0},
		{zeros(1) + "." + zeros(100000) + "e99999999999999999999", 0},
		{strings.Repeat("9", 1000) + "e-1000", 1},
		{"0." + strings.Repeat("3", 100000), 1.0 / 3},
	} {
		f, single, err := reads(t, c.text)
		if err != nil || f != c.want || single != float32(c.want) {
			t.Errorf("%.20s… of %d bytes: got %v and %v, %v, want %v", c.text, len(c.text), f, single, err, c.want)
		}
	}
	for _, text := range []string{"1" + zeros(1000), "1" + zeros(100000) + "e-90000", "0." + zeros(20000) + "1e30000", "1" + zeros(500) + "e99999999999999999999"} {
		if f, _, err := reads(t, text); err == nil {
			t.Errorf("%.20s… of %d bytes was read as %v", text, len(text), f)
		}
	}
	if f, _, _ := reads(t, "-0."+zeros(1000)+"e5"); f != 0 || !math.Signbit(f) {
		t.Errorf("a long -0.0 is read as %v", f)
	}
}

// TestNumbersBesideRationals reads numbers at, just below and just above the middle of two
// doubles and two singles, written with any number of digits and any exponent, and wants what
// exact arithmetic rounds them to.
func TestNumbersBesideRationals(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	for range rounds {
		text := middle(rnd)
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%.60s… is no number", text)
		}
		f, single, err := reads(t, text)
		want, _ := exact.Float64()
		want32, _ := exact.Float32()
		if math.IsInf(want, 0) || math.IsInf(float64(want32), 0) {
			if err == nil {
				t.Fatalf("%.60s… of %d bytes was read as %v and %v", text, len(text), f, single)
			}
			continue
		}
		if err != nil || f != want || single != want32 {
			t.Fatalf("%.60s… of %d bytes: got %v and %v, %v, want %v and %v", text, len(text), f, single, err, want, want32)
		}
	}
}

// middle is a number at or beside the middle of two singles or doubles.
func middle(rnd *rand.Rand) string {
	var at *big.Float
	if rnd.IntN(2) == 0 {
		low := math.Float32frombits(rnd.Uint32() & (1<<31 - 1))
		for low != low || math.IsInf(float64(low), 0) {
			low = math.Float32frombits(rnd.Uint32() & (1<<31 - 1))
		}
		if rnd.IntN(4) == 0 {
			low = math.Float32frombits(rnd.Uint32() & (1<<24 - 1)) // subnormal
		}
		at = new(big.Float).SetPrec(2000).SetFloat64((float64(low) + float64(math.Nextafter32(low, math.MaxFloat32))) / 2)
	} else {
		low := math.Float64frombits(rnd.Uint64N(0x47efffffe0000000)) // no larger than singles are
		if rnd.IntN(4) == 0 {
			low = math.Float64frombits(rnd.Uint64() & (1<<53 - 1))
		}
		at = new(big.Float).SetPrec(2000).SetFloat64(low)
		at.Add(at, new(big.Float).SetFloat64(math.Nextafter(low, math.MaxFloat64)))
		at.Quo(at, big.NewFloat(2))
	}
	digits := at.Text('e', 1100) // all of them
	cut := strings.IndexByte(digits, 'e')
	mant, exp := strings.TrimRight(strings.Replace(digits[:cut], ".", "", 1), "0"), 0
	if _, err := fmt.Sscan(digits[cut+1:], &exp); err != nil || mant == "" {
		return "0.5"
	}
	exp -= len(mant) - 1 // mant, an integer, times its power
	for mant[0] == '0' && len(mant) > 1 {
		mant = mant[1:]
	}
	tail := strings.Repeat("0", rnd.IntN(3)*rnd.IntN(900)) + "1"
	switch rnd.IntN(3) {
	case 0: // a little more
		mant, exp = mant+tail, exp-len(tail)
	case 1: // a little less
		b := []byte(mant)
		if b[len(b)-1] > '1' || len(b) > 1 {
			b[len(b)-1]-- // not 0: what is trimmed ends so
			if b[0] == '0' {
				b = b[1:]
			}
			if len(b) > 0 {
				mant, exp = string(b)+strings.Repeat("9", len(tail)), exp-len(tail)
			}
		}
	}
	if n := rnd.IntN(3) * rnd.IntN(1200); n > 0 { // zeros behind it
		mant, exp = mant+strings.Repeat("0", n), exp-n
	}
	switch rnd.IntN(3) {
	case 0:
		return fmt.Sprintf("%se%d", mant, exp)
	case 1:
		n := rnd.IntN(1000)
		return fmt.Sprintf("0.%s%se%d", strings.Repeat("0", n), mant, exp+len(mant)+n)
	}
	n := rnd.IntN(len(mant))
	if n == 0 {
		return fmt.Sprintf("%s.0E%d", mant, exp)
	}
	return fmt.Sprintf("%s.%sE%+d", mant[:n], mant[n:], exp+len(mant)-n)
}
