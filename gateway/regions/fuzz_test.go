package regions_test

import (
	"math"
	"testing"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/regions/regionstest"
	"github.com/sluice-serve/sluice/infer"
)

// Whatever offsets and sizes are asked for, a region lies within its file and a place
// within its region.
func FuzzRanges(f *testing.F) {
	for _, n := range []uint64{0, 1, 64, 4095, 4096, 4097, math.MaxInt64, 1 << 63, math.MaxUint64 - 63, math.MaxUint64} {
		f.Add(n, uint64(64), uint64(0), n)
		f.Add(uint64(64), n, n, uint64(1))
	}
	f.Fuzz(func(t *testing.T, offset, size, at, n uint64) {
		r := regionstest.New(t).Registry(regions.Config{Folder: folder(t)})
		alice := from("alice")
		err := r.Register(t.Context(), alice, regions.Spec{Name: "a", Key: "memory", Offset: offset, Size: size})
		if fits := size > 0 && size <= 4096 && offset <= 4096-size; (err == nil) != fits {
			t.Fatalf("%d bytes at %d of 4096: %v", size, offset, err)
		}
		if err != nil {
			return
		}
		for _, output := range []bool{false, true} {
			req := &infer.Request{Inputs: make([]infer.Tensor, 1), Outputs: make([]infer.RequestedOutput, 1)}
			err := r.Attach(alice, req, []regions.Use{{Region: "a", Offset: at, Size: n, Output: output}})
			if fits := at < size && n <= size-at && (n > 0 || output); (err == nil) != fits {
				t.Errorf("%d bytes at %d of a region of %d, output %t: %v", n, at, size, output, err)
			}
			p := req.Inputs[0].Place
			if output {
				p = req.Outputs[0].Place
			}
			if err == nil && (p.Offset < 0 || p.Size < 0 || p.Offset+p.Size > int64(size)) {
				t.Errorf("the place is %+v in a region of %d", p, size)
			}
			req.Memory.Release()
		}
	})
}
