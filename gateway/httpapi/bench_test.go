package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
)

// pooledBodies is memory as a gateway has it.
type pooledBodies struct {
	memorytest.Plenty
	pool sync.Pool
}

func (p *pooledBodies) Body(n int64) (*infer.Buffer, error) {
	b, ok := p.pool.Get().(*infer.Buffer)
	if !ok || int64(cap(b.Data)) < n {
		b = &infer.Buffer{}
		b.Data = make([]byte, n)
	}
	b.Reset(b.Data[:n], func(b *infer.Buffer) { p.pool.Put(b) })
	return b, nil
}

// echo answers with the inputs, without a cost of its own.
type echo struct {
	fake
	resp sync.Pool
}

func (e *echo) Open(context.Context, *infer.Envelope) (wait func() error, err error) { return nil, nil }

func (*echo) Close(*infer.Envelope, *infer.End) {}

func (e *echo) Infer(_ context.Context, req *infer.Request, to infer.Sink) {
	r, ok := e.resp.Get().(*infer.Response)
	if !ok {
		r = &infer.Response{}
	}
	req.Memory.Retain()
	*r = infer.Response{ID: req.ID, Model: req.Model, Version: "1", Final: true, Memory: req.Memory, Outputs: append(r.Outputs[:0], req.Inputs...)}
	r.Outputs[0].Name = "OUTPUT0"
	err := to.Send(r)
	e.resp.Put(r)
	infer.Flush(to.Done(err))
}

// BenchmarkCall decodes and encodes one call; no transport.
func BenchmarkCall(b *testing.B) {
	jsonBody := func(n int) string {
		return `{"id":"1","inputs":[{"name":"INPUT0","shape":[1,` + fmt.Sprint(n) + `],"datatype":"FP32","data":[` +
			strings.TrimSuffix(strings.Repeat("0.25,", n), ",") + `]}]}`
	}
	for _, c := range []struct {
		name   string
		floats int
		json   bool
	}{{"json16", 16, true}, {"json512", 512, true}, {"binary16", 16, false}, {"binary2KB", 512, false}, {"binary600KB", 150_000, false}} {
		b.Run(c.name, func(b *testing.B) {
			e := &echo{}
			a, err := NewAPI(APIConfig{}, APIDeps{Pipeline: e, Control: e, Bodies: &pooledBodies{}})
			if err != nil {
				b.Fatal(err)
			}
			head, data := binaryRequest(c.floats)
			h := header{"Inference-Header-Content-Length": fmt.Sprint(len(head))}
			body := head + string(data)
			if c.json {
				body, h = jsonBody(c.floats), header{}
			}
			r := strings.NewReader(body)
			call := Call{Method: "POST", Path: "/v2/models/mlp/infer", Header: h, Body: r, Length: int64(len(body))}
			var reply Reply
			ctx := b.Context()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(body)
				a.Serve(ctx, &call, &reply)
				if reply.Status != 200 {
					b.Fatal(reply.Status, string(reply.Chunks[0]))
				}
				for _, c := range reply.Chunks {
					_, _ = io.Discard.Write(c)
				}
				reply.Release()
			}
		})
	}
}

// BenchmarkHeaderStandard is what encoding/json takes for the JSON part alone.
func BenchmarkHeaderStandard(b *testing.B) {
	head, _ := binaryRequest(512)
	b.ReportAllocs()
	for b.Loop() {
		var v struct {
			ID     string
			Inputs []struct {
				Name, Datatype string
				Shape          []int64
				Parameters     map[string]any
			}
			Outputs []struct {
				Name       string
				Parameters map[string]any
			}
		}
		if err := json.NewDecoder(bytes.NewReader([]byte(head))).Decode(&v); err != nil {
			b.Fatal(err)
		}
	}
}
