package client

import (
	"bytes"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A request whose outputs go where its inputs lie, also by another name of the same memory,
// gets the answers of the inputs that it sent.
func TestOutputsOverInputs(t *testing.T) {
	const n, row = 64, 256
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, spec(1, nil))
	defer unload(t, v)
	mem := newShared(t, 8192)
	openRegionOf(t, w, mem.region(1))
	second := mem.region(2)
	second.Offset, second.Size = 4096, 4096
	openRegionOf(t, w, second)
	in := [2]infer.Place{{Region: 1, Offset: 4096, Size: row}, {Region: 1, Offset: 4096 + row, Size: row}}
	for _, out := range [][2]infer.Place{
		{{Region: 1, Offset: 4096 + row, Size: row}, {Region: 1, Offset: 4096, Size: row}},
		{{Region: 1, Offset: 4096 + row + 64, Size: row}, {Region: 1, Offset: 0, Size: row}},
		{{Region: 2, Offset: row, Size: row}, {Region: 2, Offset: 1024, Size: row}},
		{{Region: 2, Offset: 8, Size: row}, {Region: 1, Offset: 1024, Size: row}},
	} {
		var want [2][]byte
		b, results := newBatch(1, n)
		for k, p := range in {
			for i := range mem.mem[p.Offset:][:row] {
				mem.mem[int(p.Offset)+i] = byte(i*(k+3) + k)
			}
			want[k] = bytes.Clone(mem.mem[p.Offset:][:row])
			b.Inputs[k].Segments, b.Inputs[k].Places = [][]byte{nil}, []infer.Place{p}
		}
		b.Requests[0].Outputs = []infer.RequestedOutput{{Name: "OUTPUT0", Place: out[0]}, {Name: "OUTPUT1", Place: out[1]}}
		v.Executor(0).Execute(b)
		r := wait(t, results)
		if a := answers(t, b, r); a[0].Err != nil {
			t.Fatal(a[0].Err)
		}
		for k, p := range out {
			at := p.Offset
			if p.Region == 2 {
				at += second.Offset
			}
			if !bytes.Equal(mem.mem[at:][:row], want[k]) {
				t.Errorf("%+v: output %d has other bytes than input %d had", out, k, k)
			}
		}
		r.Memory.Release()
	}
	closeRegionOf(t, w, 1)
	closeRegionOf(t, w, 2)
}
