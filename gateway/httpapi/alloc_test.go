package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// direct is echo for callers that do not wait.
type direct struct{ echo }

func (d *direct) Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func()) {
	d.Infer(ctx, req, to)
	return nil
}

// heard counts replies.
type heard struct{ n int }

func (h *heard) Answered() infer.Flusher {
	h.n++
	return nil
}

// TestAllocations holds what decoding and encoding a small binary request allocates: its
// id, once its head is kept.
func TestAllocations(t *testing.T) {
	d := &direct{}
	a, err := NewAPI(APIConfig{}, APIDeps{Pipeline: d, Control: d, Bodies: &pooledBodies{}})
	if err != nil {
		t.Fatal(err)
	}
	head, data := binaryRequest(16)
	body := head + string(data)
	r := strings.NewReader(body)
	call := Call{Method: "POST", Path: "/v2/models/mlp/infer", Header: header{"Inference-Header-Content-Length": fmt.Sprint(len(head))}, Body: r, Length: int64(len(body))}
	var reply Reply
	to, n := &heard{}, 0
	once := func() {
		r.Reset(body)
		n++
		if !a.Start(t.Context(), &call, &reply, to) || reply.Status != 200 {
			t.Fatal(reply.Status)
		}
		reply.Release()
	}
	got := testing.AllocsPerRun(1000, once)
	for range 4 { // what other tests leave to the collector empties pools, too
		got = min(got, testing.AllocsPerRun(1000, once))
	}
	t.Logf("%.1f allocations for a request", got)
	if most := 4.0; got > most { // three of them where the race detector empties pools
		t.Errorf("a request takes %.1f allocations, at most %.0f", got, most)
	}
	if to.n != n {
		t.Errorf("%d of %d were answered", to.n, n)
	}
}
