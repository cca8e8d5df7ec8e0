package client

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
)

// An output that is a large input is the request's own memory, which is held until the answer
// is let go of; where it is wanted in a region it is written there.
func TestPassedInputs(t *testing.T) {
	const columns = 64 << 10
	for name, open := range local() {
		if name == "stream" {
			continue // which brings every output
		}
		t.Run(name, func(t *testing.T) {
			w := open(t)
			v := load(t, w, spec(1, nil))
			defer unload(t, v)
			mem := newShared(t, 4*columns+4096)
			openRegionOf(t, w, mem.region(1))
			for _, placed := range []bool{false, true} {
				freed := false
				b, results := newBatch(1, columns)
				q := b.Requests[0]
				data := q.Inputs[0].Data
				q.Memory = infer.NewBuffer(data, func(*infer.Buffer) { freed = true })
				if placed {
					q.Outputs = []infer.RequestedOutput{{Name: "OUTPUT0", Place: infer.Place{Region: 1, Offset: 8, Size: 4 * columns}}, {Name: "OUTPUT1"}}
				}
				v.Executor(0).Execute(b)
				r := wait(t, results)
				got := answers(t, b, r)[0]
				if got.Err != nil {
					t.Fatal(got.Err)
				}
				q.Memory.Release() // as its maker does when the answer is there
				if freed {
					t.Fatal("the memory is free before the answer is")
				}
				for k, o := range got.Response.Outputs {
					switch inRegion := placed && k == 0; {
					case inRegion != !o.Place.IsZero():
						t.Errorf("placed %v: output %d lies at %+v", placed, k, o.Place)
					case inRegion && !bytes.Equal(mem.mem[8:][:4*columns], data):
						t.Error("the region has other bytes")
					case !inRegion && unsafe.SliceData(o.Data) != unsafe.SliceData(data):
						t.Errorf("placed %v: output %d is not the request's own input", placed, k)
					case !inRegion && !bytes.Equal(o.Data, data):
						t.Errorf("placed %v: output %d has other bytes", placed, k)
					}
				}
				r.Memory.Release()
				if !freed {
					t.Error("the request's memory is held though the answer was let go of")
				}
			}
			closeRegionOf(t, w, 1)
		})
	}
}
