package client

import (
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// testRagged sends requests of different shapes in one batch: each gets its own back.
func testRagged(t *testing.T, w *Workers) {
	s := spec(1, nil)
	for _, in := range s.Config.Input {
		in.AllowRaggedBatch = true
	}
	v := load(t, w, s)
	defer unload(t, v)
	b, results := newBatch(3, 4) // 12 elements in each input
	extents := [][]int64{{1, 5}, {1, 0}, {1, 7}}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		in.Layout, in.Extents, in.Shape = infer.Ragged, extents, []int64{12}
	}
	whole := append([]byte{}, b.Inputs[0].Segments[0]...)
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if r.Err != nil || len(r.Responses) != 3 {
		t.Fatalf("%v, %d responses, want 3", r.Err, len(r.Responses))
	}
	size := int64(len(whole) / 12)
	at := int64(0)
	for i, one := range r.Responses {
		if one.Err != nil || one.Index != i || len(one.Response.Outputs) != len(b.Inputs) {
			t.Fatalf("response %d is %+v", i, one)
		}
		o, n := &one.Response.Outputs[0], extents[i][1]*size
		if fmt.Sprint(o.Shape) != fmt.Sprint(extents[i]) || string(o.Data) != string(whole[at:at+n]) {
			t.Errorf("response %d is %v %x, want %v %x", i, o.Shape, o.Data, extents[i], whole[at:at+n])
		}
		at += n
	}
	r.Memory.Release()
}
