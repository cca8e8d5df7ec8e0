//go:build !race

package cache

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A hit costs no allocation. With the race detector pools forget, so it is not counted
// there.
func TestHitAllocates(t *testing.T) {
	r := newRig()
	req := request()
	req.Params = nil
	send := func(resp *infer.Response) error {
		resp.Memory.Release()
		return nil
	}
	ask := func() {
		if err := r.Do(t.Context(), r.s, r.run, req, send); err != nil {
			t.Error(err)
		}
	}
	ask()
	if n := testing.AllocsPerRun(200, ask); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
