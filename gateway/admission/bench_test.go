package admission

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// typical is a file as one would write it: what a caller may have, and what a model may.
const typical = `rules:
- {name: caller, each: principal, requests: 1000000000/s, concurrency: 1000}
- {name: heavy, groups: [batch], compute: 900s/s}
- {name: resnet, models: ["resnet*"], bytes: 100000GB/s, elements: 1000000000000/s, bytes_in_flight: 1GiB}
- {name: all, requests: 1000000000/s}
`

// once is one call of the path: as over HTTP, or as over gRPC, where the body names the
// model.
func once(ctx context.Context, tb testing.TB, l *Limits, env *infer.Envelope, req *infer.Request, end *infer.End, grpc bool) {
	env.Model, env.BodySize = "resnet50", 4096
	if grpc {
		env.Model, env.BodySize = "", -1
	}
	if err := l.Open(ctx, env); err != nil {
		tb.Fatal(err)
	}
	if err := l.Request(ctx, req); err != nil {
		tb.Fatal(err)
	}
	l.Close(env, end)
}

func path() (*infer.Envelope, *infer.Request, *infer.End) {
	env := &infer.Envelope{Action: infer.ActionInference, Principal: &infer.Principal{Name: "team-a", Groups: []string{"batch"}}}
	req := &infer.Request{Model: "resnet50", Rows: 1, Envelope: env, Inputs: []infer.Tensor{{Datatype: infer.FP32, Shape: []int64{1, 1024}, Data: make([]byte, 4096)}}}
	// what the pipeline has taken down
	env.Opened = infer.Now()
	req.Times = infer.Times{ComputeStart: 1, ComputeEnd: 2000, BatchRows: 1, RequestEnd: env.Opened}
	return env, req, &infer.End{Request: req}
}

func TestPathAllocatesNothing(t *testing.T) {
	l := limits(t, typical, nil)
	for _, grpc := range []bool{false, true} {
		env, req, end := path()
		if n := testing.AllocsPerRun(500, func() { once(t.Context(), t, l, env, req, end, grpc) }); n > 0 {
			t.Errorf("grpc %v: %v allocations", grpc, n)
		}
	}
}

// spent is the CPU time of this process.
func spent(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCall(b *testing.B) {
	ctx := b.Context()
	for _, c := range []struct {
		name string
		grpc bool
	}{{"http", false}, {"grpc", true}} {
		b.Run(c.name, func(b *testing.B) {
			l := limits(b, typical, nil)
			env, req, end := path()
			b.ReportAllocs()
			before := spent(b)
			for b.Loop() {
				once(ctx, b, l, env, req, end, c.grpc)
			}
			// of this process: what other processes take of the machine is not in it
			b.ReportMetric(float64(spent(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
	b.Run("parallel", func(b *testing.B) {
		l := limits(b, typical, nil)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			env, req, end := path()
			for pb.Next() {
				once(ctx, b, l, env, req, end, false)
			}
		})
	})
}
