package classification

import (
	"encoding/binary"
	"math"
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
		got, err := Top(c.in, c.k, c.batched, c.labels)
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
	if _, err := Top(infer.Tensor{Datatype: infer.Bytes, Shape: []int64{1}, Data: []byte{0, 0, 0, 0}}, 1, false, nil); infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("strings have no order: %v", err)
	}
	if _, err := Top(infer.Tensor{Datatype: infer.FP32, Shape: []int64{3}, Data: fp32(1)}, 1, false, nil); infer.CodeOf(err) != infer.Internal {
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

// Few classes are found by insertion, many by sorting: both must agree.
func TestLargestAgrees(t *testing.T) {
	values := make([]float64, 200)
	for i := range values {
		values[i] = float64((i * 7919) % 50)
	}
	value := func(i int64) number { return number{kind: 'f', f: values[i]} }
	all := largest(nil, 200, 200, value)
	for k := int64(0); k <= fewClasses; k++ {
		if got := largest(nil, k, 200, value); !equal(got, all[:k]) {
			t.Errorf("k %d: got %v, want %v", k, got, all[:k])
		}
	}
}
