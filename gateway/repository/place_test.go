package repository

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// Large inputs that an instance would copy are not left to it: their size is their
// client's word.
func TestLargePlaces(t *testing.T) {
	config := func(datatype, more string) string {
		return `name: "m" max_batch_size: 8 input { name: "IN" data_type: ` + datatype + ` dims: -1 } output { name: "OUT" data_type: ` + datatype + ` dims: -1 } ` + more
	}
	const large = int64(1) << 36
	for _, row := range []struct {
		name, config string
		datatype     infer.Datatype
		size         int64
		want         bool
	}{
		{"small indices", config("TYPE_INT32", ""), infer.Int32, 600 << 10, true},
		{"many indices", config("TYPE_INT32", ""), infer.Int32, large, false},
		{"long texts", config("TYPE_STRING", ""), infer.Bytes, large, false},
		{"a large request that is alone", config("TYPE_FP32", ""), infer.FP32, large, true},
		{"a small request among others", config("TYPE_FP32", "dynamic_batching {}"), infer.FP32, 600 << 10, true},
		{"a large request among others", config("TYPE_FP32", "dynamic_batching {}"), infer.FP32, large, false},
	} {
		m := model(t, row.config)
		m.loaded = &fakeLoaded{}
		req := &infer.Request{Inputs: []infer.Tensor{{Name: "IN", Datatype: row.datatype, Place: infer.Place{Region: 1, Size: row.size}}}}
		if got := m.Places(req); got != row.want {
			t.Errorf("%s: got %t, want %t", row.name, got, row.want)
		}
	}
}
