package grpcapi

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// A trace ends once, when the transport has taken the answer or the error.
func TestTraceMarks(t *testing.T) {
	for name, then := range map[string]func(*fakePipeline, *infer.Request, infer.SendFunc) error{
		"answered": func(p *fakePipeline, req *infer.Request, send infer.SendFunc) error { return send(p.echo(req)) },
		"failed":   func(*fakePipeline, *infer.Request, infer.SendFunc) error { return infer.Errorf(infer.Internal, "x") },
		"panic":    func(*fakePipeline, *infer.Request, infer.SendFunc) error { panic("x") },
	} {
		t.Run(name, func(t *testing.T) {
			onBothCodecs(t, func(t *testing.T, codec option) {
				ended := make(chan *infer.Trace, 2)
				var ids atomic.Uint64
				r := start(t, codec, func(_ *Config, r *rig) {
					r.pipeline.open = func(_ context.Context, env *infer.Envelope) error { env.Opened = infer.Now(); return nil }
					r.pipeline.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
						f := &infer.TraceFamily{Level: infer.TraceTimestamps, IDs: &ids, Sink: func(f *infer.TraceFamily) { ended <- f.Traces[0] }}
						req.Trace = f.Begin(req.Model, req.ID)
						req.Trace.Start = infer.Now()
						return then(r.pipeline, req, send)
					}
				})
				_, err := r.client.ModelInfer(t.Context(), fp32Request(8))
				if (err == nil) != (name == "answered") {
					t.Fatal(status.Convert(err).Message())
				}
				tr := <-ended
				var got []string
				last := int64(0)
				for _, m := range tr.Marks {
					if m.At < last {
						t.Errorf("%s is before what stands before it", m.Name)
					}
					last = m.At
					got = append(got, m.Name)
				}
				want := "GRPC_WAITREAD_START GRPC_WAITREAD_END GRPC_SEND_START GRPC_SEND_END"
				if name == "panic" { // where it unwinds the call, the reception is not marked
					want = "GRPC_SEND_START GRPC_SEND_END"
				}
				if all := strings.Join(got, " "); all != want && (name != "panic" || !strings.HasSuffix(all, want)) {
					t.Errorf("marks %v, want %s", got, want)
				}
				if len(ended) > 0 {
					t.Error("ended twice")
				}
			})
		})
	}
}
