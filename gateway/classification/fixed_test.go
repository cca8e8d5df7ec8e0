package classification

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The text is strconv's, which is exact and rounds as C's printf does.
func TestFixedBesideStrconv(t *testing.T) {
	check := func(f float64) {
		t.Helper()
		if math.IsInf(f, 0) { // C's word is another
			return
		}
		got, want := appendFixed(nil, f), strconv.AppendFloat(nil, f, 'f', decimals, 64)
		if string(got) != string(want) {
			t.Fatalf("%x: got %s, want %s", math.Float64bits(f), got, want)
		}
		if size := fixedSize(f); len(got) > size || size > len(got)+2 {
			t.Fatalf("%s has %d bytes, sized %d", got, len(got), size)
		}
	}
	for _, f := range []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 0.1, 1e-6, 5e-7, 4.9999999e-7, 1.5e-6, 2.5e-6,
		0.9999995, 9.9999999, 99999.9999999,
		math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, math.Pi, 1 << 52, 1<<53 - 1, 1 << 53, 1 << 54, 1<<52 - 0.5,
		1e15, 1e16, 1e22, 1e23, 123456789.0000005} {
		check(f)
		check(math.Nextafter(f, math.Inf(1)))
		check(math.Nextafter(f, math.Inf(-1)))
	}
	for e := -1074; e < 1024; e++ { // powers of two, where ties are
		check(math.Ldexp(1, e))
		check(math.Ldexp(1<<53-1, e-53))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		if f := math.Float64frombits(random.Uint64()); f == f && !math.IsInf(f, 0) {
			check(f)
			check(float64(math.Float32frombits(uint32(random.Uint64())&^(0xff<<23) | 0x3f<<24)))
		}
		check(random.NormFloat64() * math.Pow(10, float64(random.IntN(20)-8)))
		check(float64(random.IntN(1<<40)) / math.Ldexp(1, random.IntN(40))) // ties and near them
	}
	for f, want := range map[float64]string{math.Inf(1): "inf", math.Inf(-1): "-inf"} {
		if got := string(appendFixed(nil, f)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := string(appendFixed(nil, math.NaN())); got != "nan" {
		t.Errorf("got %s, want nan", got)
	}
}

func FuzzFixedBesideStrconv(f *testing.F) {
	f.Add(math.Pi)
	f.Fuzz(func(t *testing.T, v float64) {
		if v != v || math.IsInf(v, 0) {
			return
		}
		if got, want := appendFixed(nil, v), strconv.AppendFloat(nil, v, 'f', decimals, 64); string(got) != string(want) {
			t.Errorf("%x: got %s, want %s", math.Float64bits(v), got, want)
		}
	})
}

func BenchmarkFixed(b *testing.B) {
	for name, f := range map[string]float64{"small": 0.123456789, "large": 1.2345e300} {
		var to [512]byte
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				appendFixed(to[:0], f)
			}
		})
		b.Run(name+" strconv", func(b *testing.B) {
			for b.Loop() {
				strconv.AppendFloat(to[:0], f, 'f', decimals, 64)
			}
		})
	}
}
