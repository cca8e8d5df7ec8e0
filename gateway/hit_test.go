package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

// fields are the header fields of a call.
type fields []httpapi.Field

func (f fields) Get(name string) string {
	for i := range f {
		if f[i].Name == name {
			return f[i].Value
		}
	}
	return ""
}

func (f fields) Count(name string) (n int) {
	for i := range f {
		if f[i].Name == name {
			n++
		}
	}
	return n
}

func (f fields) Each(visit func(name, value string) bool) {
	for i := range f {
		if !visit(f[i].Name, f[i].Value) {
			return
		}
	}
}

// told is told of answers.
type told struct{ n int }

func (h *told) Answered() infer.Flusher {
	h.n++
	return nil
}

// hitOnce returns a function that answers a request of n floats out of the response
// cache: all that a hit costs but its transport.
func hitOnce(t testing.TB, g *Gateway, n int, id string) func() {
	api, err := httpapi.NewAPI(httpapi.APIConfig{}, g.apiDeps("http"))
	if err != nil {
		t.Fatal(err)
	}
	head := fmt.Sprintf(`{%s"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`, id, n, 4*n)
	body := head + strings.Repeat("abcd", n)
	r := strings.NewReader(body)
	call := httpapi.Call{Method: "POST", Path: "/v2/models/kept/infer", Body: r, Length: int64(len(body)), Header: fields{
		{Name: "Host", Value: "a"}, {Name: "Inference-Header-Content-Length", Value: fmt.Sprint(len(head))},
		{Name: "Content-Type", Value: "application/octet-stream"}}}
	var reply httpapi.Reply
	ctx := t.Context()
	r.Reset(body)
	api.Serve(ctx, &call, &reply)
	reply.Release()
	call.Inline = true
	to, asked := &told{}, 0
	return func() {
		r.Reset(body)
		asked++
		if !api.Start(ctx, &call, &reply, to) || to.n != asked || reply.Status != 200 {
			t.Fatalf("status %d, answered %d of %d", reply.Status, to.n, asked)
		}
		reply.Release()
	}
}

// TestHitAllocations holds what a hit over HTTP allocates without its transport: an id, if
// there is one.
func TestHitAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools now and then")
	}
	g, _ := startPath(t)
	for id, most := range map[string]float64{"": 0, `"id":"seven",`: 1} {
		once := hitOnce(t, g, 512, id)
		for range 10 {
			once()
		}
		if got := testing.AllocsPerRun(1000, once); got > most {
			t.Errorf("a hit with %q takes %.1f allocations, at most %.0f", id, got, most)
		}
	}
}

// BenchmarkHit is a hit of the response cache over HTTP without its transport.
func BenchmarkHit(b *testing.B) {
	g, _ := startPath(b)
	for _, n := range []int{16, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			once := hitOnce(b, g, n, "")
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
		})
	}
}
