package client

import (
	"bytes"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// Large tensors in regions and in the message, in batches that are gathered and in batches
// that are executed one by one: the answers are the same, and each request's memory is its own
// trouble.
func TestPlacesApart(t *testing.T) {
	const n, row = 32 << 10, 128 << 10
	for name, open := range local() {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			v := load(t, w, one(nil))
			defer unload(t, v)
			a, c := newShared(t, 6*row), newShared(t, 2*row)
			openRegionOf(t, w, a.region(1))
			openRegionOf(t, w, c.region(2))
			in := []infer.Place{{Region: 1, Size: row}, {}, {Region: 2, Size: row}, {Region: 1, Offset: 4*row + 64, Size: row}}
			out := []infer.Place{{Region: 1, Offset: row, Size: row}, {}, {Region: 2, Offset: row, Size: row}, {Region: 1, Offset: 2 * row, Size: row}}
			mems := map[uint32][]byte{1: a.mem, 2: c.mem}
			run := func(round int, lost bool) {
				b, results := placedBatch(n, in, out)
				copy(a.mem, bytes.Repeat([]byte{byte(round), 7}, row/2))
				want := make([][]byte, len(in))
				for i, p := range in {
					if data := b.Inputs[0].Segments[i]; p.IsZero() {
						want[i] = bytes.Clone(data)
					} else if !lost || p.Region == 1 {
						want[i] = bytes.Clone(mems[p.Region][p.Offset:][:p.Size])
					}
				}
				v.Executor(0).Execute(b)
				r := wait(t, results)
				for i, got := range answers(t, b, r) {
					if lost && in[i].Region == 2 {
						if infer.CodeOf(got.Err) != infer.InvalidArg {
							t.Errorf("round %d: request %d, whose memory is gone, has %v", round, i, got.Err)
						}
						continue
					}
					if got.Err != nil {
						t.Fatalf("round %d: request %d: %v", round, i, got.Err)
					}
					data := got.Response.Outputs[0].Data
					if p := out[i]; !p.IsZero() {
						data = mems[p.Region][p.Offset:][:p.Size]
					}
					if !bytes.Equal(data, want[i]) {
						t.Errorf("round %d: request %d has other bytes", round, i)
					}
				}
				r.Memory.Release()
			}
			for round := range 24 {
				run(round, false)
			}
			if err := c.file.Truncate(0); err != nil {
				t.Fatal(err)
			}
			for round := range 24 {
				run(round, true)
			}
			closeRegionOf(t, w, 1)
			closeRegionOf(t, w, 2)
		})
	}
}
