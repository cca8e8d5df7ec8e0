package drive_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

var _ schedule.Memory = (*shm.Arena)(nil)

// holding is memory in which body lies already.
type holding struct {
	*memory
	body []byte
}

func (h *holding) Holds(b []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(h.body)))
	return at >= from && at < from+uintptr(len(h.body))
}

func wide(id string, data []byte) *infer.Request {
	return &infer.Request{ID: id, Rows: 1, Inputs: []infer.Tensor{{Name: "A", Datatype: infer.Uint8,
		Shape: []int64{1, int64(len(data))}, Data: data}}}
}

// segments runs requests through one batch behind another and says what it is made of.
func segments(t *testing.T, mem schedule.Memory, reqs ...*infer.Request) [][]byte {
	t.Helper()
	f := &fake{}
	s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
	callers := []*caller{start(t.Context(), s, request("z", 1))}
	for _, r := range reqs {
		synctest.Wait()
		callers = append(callers, start(t.Context(), s, r))
	}
	synctest.Wait()
	f.answer(t)
	synctest.Wait()
	b := f.next(t)
	got := b.Inputs[0].Segments
	b.Deliver(echo(b))
	for _, c := range callers {
		if err := c.wait(t); err != nil {
			t.Errorf("request %s: %v", c.req.ID, err)
		}
	}
	return got
}

func TestHeldInputsAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte{1}, 100<<10)
		mem := &holding{newMemory(1 << 10), body}
		got := segments(t, mem, wide("a", body[:40<<10]), wide("b", body[50<<10:90<<10]))
		if len(got) != 2 || &got[0][0] != &body[0] || &got[1][0] != &body[50<<10] {
			t.Errorf("got %d segments, want the body's two", len(got))
		}
		check(t, "memory in use", mem.inUse(), 0)
	})
}

func TestLargeRowsGetTheirOwnBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemory(1 << 20)
		data := bytes.Repeat([]byte{7}, 40<<10)
		got := segments(t, mem, wide("a", data), wide("b", data))
		check(t, "segments", len(got), 2)
		check(t, "memory in use", mem.inUse(), 0)
	})
}

func TestCancelLeavesAHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := &fake{}, newMemory(1<<20)
		s := batcher(t, dynamic.Config{}, deps(mem, nil, f))
		ctx, cancel := context.WithCancel(t.Context())
		var callers []*caller
		for i, id := range []string{"z", "a", "b", "c", "d"} {
			c := t.Context()
			if i == 2 {
				c = ctx
			}
			callers = append(callers, start(c, s, request(id, 1)))
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		f.answer(t)
		synctest.Wait()
		b := f.next(t)
		check(t, "segments: a, then c and d", len(b.Inputs[0].Segments), 2)
		b.Deliver(echo(b))
		for i, c := range callers {
			if err := c.wait(t); (err != nil) != (i == 2) {
				t.Errorf("request %s: %v", c.req.ID, err)
			}
		}
		check(t, "memory in use", mem.inUse(), 0)
	})
}

// TestNamesInAnyOrder has requests that list their inputs in different orders share a
// batch whose inputs are in the model's order.
func TestNamesInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := batcher(t, dynamic.Config{}, deps(newMemory(1<<20), nil, f))
		z := start(t.Context(), s, request("z", 1))
		synctest.Wait()
		swapped := request("b", 1)
		swapped.Inputs[0], swapped.Inputs[1] = swapped.Inputs[1], swapped.Inputs[0]
		a := start(t.Context(), s, request("a", 1))
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- s.Do(t.Context(), swapped, drop) }()
		synctest.Wait()
		f.answer(t)
		synctest.Wait()
		b := f.next(t)
		check(t, "rows", b.Rows, 2)
		check(t, "first input", b.Inputs[0].Name, "A")
		check(t, "its rows", string(b.Inputs[0].Segments[0]), "aaaaaaaabbbbbbbb")
		b.Deliver(echo(b))
		check(t, "z", z.wait(t), nil)
		check(t, "a", a.wait(t), nil)
		check(t, "b", <-done, nil)
	})
}
