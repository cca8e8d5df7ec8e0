package checked

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// Wrong is an answer that is not the one that was due: no fault excuses it.
type Wrong struct{ Text string }

// Error is the text.
func (w *Wrong) Error() string { return w.Text }

// Wrongf makes a *Wrong.
func Wrongf(format string, args ...any) error { return &Wrong{fmt.Sprintf(format, args...)} }

// Values are n random integers.
func Values(rng *rand.Rand, n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(rng.Uint32())
	}
	return v
}

// Raw is an INT32 tensor's content as the binary tensor extension and gRPC carry it.
func Raw(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// Numbers reads what Raw wrote; bytes beyond the last whole element are left out.
func Numbers(b []byte) []int32 {
	v := make([]int32, len(b)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// Offset is the one number that was added to each element, with wraparound. An answer of
// another length, or with different numbers, is a *Wrong.
func Offset(in, out []int32) (int32, error) {
	if len(in) != len(out) || len(in) == 0 {
		return 0, Wrongf("%d elements, want %d", len(out), len(in))
	}
	k := out[0] - in[0]
	for i := range in {
		if out[i]-in[i] != k {
			return 0, Wrongf("element %d has %d added, the first %d", i, out[i]-in[i], k)
		}
	}
	return k, nil
}
