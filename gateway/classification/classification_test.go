package classification

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func fp32(v ...float32) []byte {
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func texts(t *testing.T, data []byte) (out []string) {
	t.Helper()
	for len(data) > 0 {
		n := binary.LittleEndian.Uint32(data)
		out = append(out, string(data[4:4+n]))
		data = data[4+n:]
	}
	return out
}

func TestTop(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		in      infer.Tensor
		k       int64
		batched bool
		labels  []string
		shape   []int64
		want    []string
	}{
		{"two rows with labels", infer.Tensor{Datatype: infer.FP32, Shape: []int64{2, 3}, Data: fp32(1, 4, 2, 9, 8, 7)}, 2, true,
			[]string{"a", "b"}, []int64{2, 2}, []string{"4.000000:1:b", "2.000000:2", "9.000000:0:a", "8.000000:1:b"}},
		{"no batch, k over the classes", infer.Tensor{Datatype: infer.FP32, Shape: []int64{2}, Data: fp32(0.5, 1.25)}, 9, false,
			nil, []int64{2}, []string{"1.250000:1", "0.500000:0"}},
		{"equal values and NaN", infer.Tensor{Datatype: infer.FP32, Shape: []int64{1, 4}, Data: fp32(nan, 1, 1, -1)}, 4, true,
			nil, []int64{1, 4}, []string{"1.000000:1", "1.000000:2", "-1.000000:3", "nan:0"}},
		{"big integers", infer.Tensor{Datatype: infer.Uint64, Shape: []int64{2}, Data: binary.LittleEndian.AppendUint64(
			binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1), math.MaxUint64)}, 1, false, nil, []int64{1}, []string{"18446744073709551615:1"}},
		{"no rows", infer.Tensor{Datatype: infer.FP32, Shape: []int64{0, 3}}, 2, true, nil, []int64{0, 0}, nil},
		{"rows of nothing, as many as a worker may say", infer.Tensor{Datatype: infer.FP32, Shape: []int64{1 << 62, 0}}, 2, true, nil,
			[]int64{1 << 62, 0}, nil},
	} {
		ask := Ask{K: c.k, Batched: c.batched, Labels: c.labels, MaxBytes: DefaultMaxBytes}
		got, _, err := Top(t.Context(), c.in, ask)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if g := texts(t, got.Data); !equal(g, c.want) || !equal(got.Shape, c.shape) || got.Datatype != infer.Bytes {
			t.Errorf("%s: got %q of shape %v, want %q of %v", c.name, g, got.Shape, c.want, c.shape)
		}
	}
}

func TestTopRefuses(t *testing.T) {
	text := infer.Tensor{Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte{0, 0, 0, 0}}
	if _, _, err := Top(t.Context(), text, Ask{K: 1}); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("strings have no order: %v", err)
	}
	short := infer.Tensor{Datatype: infer.FP32, Shape: []int64{3}, Data: fp32(1)}
	if _, _, err := Top(t.Context(), short, Ask{K: 1}); infer.CodeOf(err) != infer.Internal {
		t.Errorf("short data: %v", err)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// The heap agrees with a stable sort, for all datatypes.
func TestRankAgreesWithSort(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, d := range []infer.Datatype{infer.Uint8, infer.Uint16, infer.Uint32, infer.Uint64, infer.Int8, infer.Int16,
		infer.Int32, infer.Int64, infer.FP32, infer.FP64} {
		const n = 3000
		v := values{d, make([]byte, n*d.Size())}
		for i := range v.data {
			v.data[i] = byte(random.Uint32())
			if i%int(d.Size()) != int(d.Size())-1 && random.IntN(2) == 0 {
				v.data[i] = 0 // equal values, and zeros of both signs
			}
		}
		want := make([]uint32, n)
		for i := range want {
			want[i] = uint32(i)
		}
		slices.SortStableFunc(want, func(a, b uint32) int { return -order(&v, int64(a), int64(b)) })
		for _, k := range []int{1, 2, 7, block - 1, block, block + 1, n - 1, n} {
			best := make([]entry, k)
			err := rank(t.Context(), best, n, v.keys)
			var got []uint32
			for _, e := range best {
				got = append(got, e.index)
			}
			if err != nil || !equal(got, want[:k]) {
				t.Errorf("%s, k %d: %v, got %v, want %v", d, k, err, got, want[:k])
			}
		}
	}
}

// order compares two elements as numbers, NaN below everything.
func order(v *values, i, j int64) int {
	switch v.datatype {
	case infer.FP32, infer.FP64:
		return cmp.Compare(v.float(i), v.float(j))
	case infer.Int8, infer.Int16, infer.Int32, infer.Int64:
		return cmp.Compare(v.signed(i), v.signed(j))
	}
	return cmp.Compare(v.unsigned(i), v.unsigned(j))
}

// A client that asks for all classes gets no more than the bound, and nothing stays counted.
func TestTopIsBounded(t *testing.T) {
	const n = 10_000
	in := infer.Tensor{Name: "o", Datatype: infer.FP64, Shape: []int64{n}}
	for range n {
		in.Data = binary.LittleEndian.AppendUint64(in.Data, math.Float64bits(1e300))
	}
	budget := &infer.Budget{Limit: 8 << 20}
	ask := Ask{K: n, MaxBytes: 4 << 20, Budget: budget}
	got, memory, err := Top(t.Context(), in, ask)
	if err != nil || budget.Used() != int64(cap(got.Data)) || len(got.Data) < 300*n || cap(got.Data)-len(got.Data) > 2*n {
		t.Fatalf("%v: %d bytes, room %d, counted %d", err, len(got.Data), cap(got.Data), budget.Used())
	}
	memory.Release()
	for name, c := range map[string]struct {
		most, limit int64
		want        infer.Reason
	}{
		"sized before it is made":     {1 << 20, 8 << 20, infer.ReasonTooLarge},
		"refused before it is ranked": {n, 8 << 20, infer.ReasonTooLarge},
		"no memory for the classes":   {4 << 20, 1 << 20, infer.ReasonMemory},
		"no memory for the indices":   {4 << 20, n, infer.ReasonMemory},
	} {
		budget = &infer.Budget{Limit: c.limit}
		ask.MaxBytes, ask.Budget = c.most, budget
		if _, _, err := Top(t.Context(), in, ask); infer.ReasonOf(err) != c.want || budget.Used() != 0 {
			t.Errorf("%s: %v, %d counted; want reason %s", name, err, budget.Used(), c.want)
		}
	}
}

// ended is a context that ends after it was looked at so many times.
type ended struct {
	context.Context
	left int
}

func (e *ended) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestTopEndsWithItsCaller(t *testing.T) {
	const n = 50_000
	in := infer.Tensor{Datatype: infer.Int32, Shape: []int64{n}, Data: make([]byte, 4*n)}
	for i := range n {
		binary.LittleEndian.PutUint32(in.Data[4*i:], uint32(i*7919))
	}
	looks := 0
	for {
		budget := &infer.Budget{Limit: 16 << 20}
		_, memory, err := Top(&ended{t.Context(), looks}, in, Ask{K: n / 2, MaxBytes: DefaultMaxBytes, Budget: budget})
		if err == nil {
			memory.Release()
			break
		}
		if !errors.Is(err, context.Canceled) || budget.Used() != 0 {
			t.Fatalf("after %d looks: %v, %d counted", looks, err, budget.Used())
		}
		looks++
	}
	if looks < 4 {
		t.Errorf("it looks at its context %d times, want some in each of its steps", looks)
	}
}

// BenchmarkTop ranks all of a million FP64, and ten of them.
func BenchmarkTop(b *testing.B) {
	const n = 1 << 20
	random := rand.New(rand.NewPCG(5, 6))
	in := infer.Tensor{Datatype: infer.FP64, Shape: []int64{n}}
	for range n {
		in.Data = binary.LittleEndian.AppendUint64(in.Data, math.Float64bits(random.NormFloat64()))
	}
	for _, k := range []int64{1, 10, 1000, n} {
		b.Run(strconv.FormatInt(k, 10), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := Top(b.Context(), in, Ask{K: k, MaxBytes: DefaultMaxBytes}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
