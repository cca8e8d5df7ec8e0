package json

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

var withForm = []infer.Datatype{infer.Bool, infer.Uint8, infer.Uint16, infer.Uint32, infer.Uint64, infer.Int8, infer.Int16, infer.Int32,
	infer.Int64, infer.FP32, infer.FP64, infer.Bytes}

// inPieces is the text of an array that is written in pieces of at least size bytes.
func inPieces(t testing.TB, d infer.Datatype, data []byte, size int) []byte {
	var text []byte
	a := NewTensorWriter(d, data)
	for more := true; more; {
		var piece []byte
		piece, more = a.Append(nil, size)
		if len(piece) > size+32 || more && len(piece) < size {
			t.Fatalf("%s: a piece of %d bytes, want about %d", d, len(piece), size)
		}
		text = append(text, piece...)
	}
	if rest, more := a.Append(nil, size); len(rest) != 0 || more {
		t.Fatalf("%s: %q after the end", d, rest)
	}
	return text
}

func TestTensorWriter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, d := range withForm {
		for _, n := range []int{0, 1, 2, 100} {
			var data []byte
			for range n {
				if d == infer.Bytes {
					element := make([]byte, random.IntN(200))
					for i := range element {
						element[i] = byte(random.Uint32()) >> random.IntN(5) // control characters too
					}
					data = append(binary.LittleEndian.AppendUint32(data, uint32(len(element))), element...)
					continue
				}
				for range d.Size() {
					data = append(data, byte(random.Uint32()))
				}
			}
			want, ok := AppendData(nil, d, data)
			if !ok || int64(len(want)) > MaxSize(d, int64(len(data))) {
				t.Fatalf("%s: %t, %d bytes of text of %d, at most %d", d, ok, len(want), len(data), MaxSize(d, int64(len(data))))
			}
			for _, size := range []int{1, 7, 64, 1 << 20} {
				if got := inPieces(t, d, data, size); !bytes.Equal(got, want) {
					t.Errorf("%s, %d elements, pieces of %d: got %s, want %s", d, n, size, got, want)
				}
			}
		}
	}
}

// The longest text of each datatype fits MaxSize.
func TestMaxSize(t *testing.T) {
	float := func(f float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)) }
	single := func(f float32) []byte { return binary.LittleEndian.AppendUint32(nil, math.Float32bits(f)) }
	for name, c := range map[string]struct {
		d    infer.Datatype
		data []byte
	}{
		"long exponent": {infer.FP64, float(-1.7976931348623157e-308)}, "long fixed": {infer.FP64, float(-123456789012345680000)},
		"many zeros": {infer.FP64, float(-0.0000012345678901234567)}, "single": {infer.FP32, single(-1.17549435e-38)},
		"long single": {infer.FP32, single(-123456789012345680000)}, "infinity": {infer.FP64, float(math.Inf(-1))},
		"int64": {infer.Int64, binary.LittleEndian.AppendUint64(nil, 1<<63)}, "int16": {infer.Int16, []byte{0, 0x80}},
		"control": {infer.Bytes, []byte{3, 0, 0, 0, 1, 2, 3}}, "empty": {infer.Bytes, make([]byte, 4)},
	} {
		data := bytes.Repeat(c.data, 50)
		if got, ok := AppendData(nil, c.d, data); !ok || int64(len(got)) > MaxSize(c.d, int64(len(data))) {
			t.Errorf("%s: %d bytes of text, at most %d: %.60s", name, len(got), MaxSize(c.d, int64(len(data))), got)
		}
	}
}

func FuzzTensorWriter(f *testing.F) {
	f.Add(uint8(9), 10, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint8(11), 3, []byte{2, 0, 0, 0, '"', 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, which uint8, size int, data []byte) {
		d := withForm[int(which)%len(withForm)]
		want, ok := AppendData(nil, d, data)
		if !ok {
			return
		}
		if got := inPieces(t, d, data, max(1, size%4096)); !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	})
}

// BenchmarkTensorWriter compares a million elements at once and in pieces.
func BenchmarkTensorWriter(b *testing.B) {
	for _, d := range []infer.Datatype{infer.Int8, infer.FP32} {
		data := make([]byte, 1<<20*d.Size())
		for i := range data {
			data[i] = byte(i * 7)
		}
		b.Run(d.String()+" at once", func(b *testing.B) {
			var to []byte
			for b.Loop() {
				to, _ = AppendData(to[:0], d, data)
			}
		})
		for _, size := range []int{16 << 10, 64 << 10} {
			b.Run(d.String()+" in pieces of "+strconv.Itoa(size), func(b *testing.B) {
				var to []byte
				for b.Loop() {
					a := NewTensorWriter(d, data)
					for more := true; more; {
						to, more = a.Append(to[:0], size)
					}
				}
			})
		}
	}
}
