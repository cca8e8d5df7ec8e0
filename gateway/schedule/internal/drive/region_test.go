package drive_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/schedule/direct"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
)

// at is a tensor of n bytes in a region.
func at(id string, region uint32, offset, n int64) *infer.Request {
	r := wide(id, nil)
	r.Inputs[0].Shape[1] = n
	r.Inputs[0].Place = infer.Place{Region: region, Offset: offset, Size: n}
	return r
}

// laid says what the one input of the next batch is made of, and fails it.
func laid(t *testing.T, f *fake) string {
	t.Helper()
	b := f.next(t)
	in := &b.Inputs[0]
	said := fmt.Sprint(in.Shape)
	for i, s := range in.Segments {
		p := infer.Place{}
		if i < len(in.Places) {
			p = in.Places[i]
		}
		said += fmt.Sprintf(" %d@%d+%d", len(s), p.Region, p.Offset)
	}
	if in.Places != nil && len(in.Places) != len(in.Segments) {
		t.Errorf("%d places of %d segments", len(in.Places), len(in.Segments))
	}
	b.Deliver(&infer.Result{Err: infer.Errorf(infer.Unavailable, "seen")})
	return said
}

// Tensors in regions are named in their batch, in the requests' order, beside others.
func TestPlacesInBatches(t *testing.T) {
	row := []byte{1, 2, 3, 4}
	for _, c := range []struct {
		name string
		reqs []*infer.Request
		want string
	}{
		{"alone", []*infer.Request{at("a", 3, 8, 4)}, "[1 4] 0@3+8"},
		{"two", []*infer.Request{at("a", 3, 8, 4), at("b", 4, 0, 4)}, "[2 4] 0@3+8 0@4+0"},
		{"first", []*infer.Request{at("a", 3, 8, 4), wide("b", row)}, "[2 4] 0@3+8 4@0+0"},
		{"last", []*infer.Request{wide("a", row), at("b", 3, 8, 4)}, "[2 4] 4@0+0 0@3+8"},
		{"between", []*infer.Request{wide("a", row), at("b", 3, 8, 4), wide("c", row)}, "[3 4] 4@0+0 0@3+8 4@0+0"},
		{"around", []*infer.Request{at("a", 3, 8, 4), wide("b", row), wide("c", row), at("d", 3, 0, 4)}, "[4 4] 0@3+8 8@0+0 0@3+0"},
		{"none", []*infer.Request{wide("a", row), wide("b", row)}, "[2 4] 8@0+0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, mem := &fake{}, newMemory(1<<20)
				s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
				callers := []*caller{start(t.Context(), s, request("z", 1))}
				for _, r := range c.reqs {
					synctest.Wait()
					callers = append(callers, start(t.Context(), s, r))
				}
				synctest.Wait()
				f.answer(t)
				synctest.Wait()
				if got := laid(t, f); got != c.want {
					t.Errorf("got %s, want %s", got, c.want)
				}
				for _, c := range callers {
					if err := c.wait(t); c.req.ID != "z" && infer.CodeOf(err) != infer.Unavailable {
						t.Errorf("request %s: %v", c.req.ID, err)
					}
				}
				if mem.used != 0 {
					t.Errorf("%d bytes are out", mem.used)
				}
			})
		})
	}
}

// An output that was written to its place comes back as it is; one among others' rows is
// a fault of the worker's.
func TestPlacedOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		d := deps(nil, nil, f)
		s, err := direct.New(direct.Config{Model: model(8)}, d)
		if err != nil {
			t.Fatal(err)
		}
		place := infer.Place{Region: 5, Offset: 64, Size: 4}
		r := at("a", 3, 8, 4)
		r.Outputs = []infer.RequestedOutput{{Name: "OUT", Place: place}}
		c := start(t.Context(), s, r)
		synctest.Wait()
		b := f.next(t)
		if b.Requests[0].Outputs[0].Place != place {
			t.Errorf("the batch asks for %+v", b.Requests[0].Outputs)
		}
		b.Deliver(&infer.Result{Outputs: []infer.Tensor{{Name: "OUT", Datatype: infer.Uint8, Shape: []int64{1, 4}, Place: place}}})
		if err := c.wait(t); err != nil {
			t.Errorf("the answer: %v", err)
		}
	})
	placed := []infer.Tensor{{Name: "OUT", Shape: []int64{2, 4}, Place: infer.Place{Region: 1, Size: 8}}}
	if _, err := infer.Split(nil, placed, 2, 0, 1); infer.CodeOf(err) != infer.Internal {
		t.Errorf("one row of a placed output: %v", err)
	}
}
