package workers_test

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

func unload(t testing.TB, g *gateway, handle uint64) {
	t.Helper()
	must(g.client.Unload(ctx(t), &worker.UnloadRequest{Handle: handle}))(t)
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestCallsAreRefusedWithReasons(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	_, err := g.client.Hello(ctx(t), &worker.HelloRequest{Protocol: 99})
	wantCode(t, "another protocol", err, codes.Unimplemented)
	err = g.conn.Invoke(ctx(t), "/sluice.worker.v1.Worker/Hello", &worker.HelloRequest{Protocol: 1}, &worker.HelloResponse{})
	wantCode(t, "protocol 1", err, codes.Unimplemented)
	if err == nil || !strings.Contains(err.Error(), "this worker speaks protocol 2") {
		t.Errorf("protocol 1: %v", err)
	}
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	_, err = g.client.Load(ctx(t), loadRequest(1, fp32Config(nil), 1))
	wantCode(t, "a handle in use", err, codes.AlreadyExists)
	_, err = g.client.Load(ctx(t), loadRequest(2, fp32Config(nil), 0))
	wantCode(t, "a mailbox in use", err, codes.InvalidArgument)
	_, err = g.client.Load(ctx(t), loadRequest(2, fp32Config(nil), 99))
	wantCode(t, "no such mailbox", err, codes.InvalidArgument)
	other := fp32Config(nil)
	other.Backend = "tensorrt"
	_, err = g.client.Load(ctx(t), loadRequest(2, other, 1))
	wantCode(t, "no such backend", err, codes.InvalidArgument)
	if err != nil && !strings.Contains(err.Error(), "'tensorrt'") {
		t.Errorf("no such backend: %v does not name it", err)
	}
	gpu := loadRequest(2, fp32Config(nil), 1)
	gpu.Instances[0].Kind = worker.Device_GPU
	_, err = g.client.Load(ctx(t), gpu)
	wantCode(t, "a GPU on a CPU worker", err, codes.InvalidArgument)
	path := loadRequest(2, fp32Config(nil), 1)
	path.ModelFile = "/r/m/1/../../../x"
	_, err = g.client.Load(ctx(t), path)
	wantCode(t, "a path with ..", err, codes.InvalidArgument)
	_, err = g.client.Unload(ctx(t), &worker.UnloadRequest{Handle: 77})
	wantCode(t, "no such handle", err, codes.NotFound)
	_, err = g.client.Describe(ctx(t), &worker.DescribeRequest{Backend: "identity", ModelFile: "/r/m/1/model.x", Config: other})
	wantCode(t, "describe by identity", err, codes.Unimplemented)
	g.load(t, loadRequest(2, fp32Config(nil), 1))
}

func TestStreamCarriesBatchesAndCancellations(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	if h := g.hello(t, false); h.Lane != 0 {
		t.Fatalf("Hello: %v, want no lane", h)
	}
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	g.load(t, loadRequest(2, fp32Config(map[string]string{"execute_delay_ms": "600000"}), 0))
	s := openStream(t, g.client)

	b, data := rowsBatch(5, 3, 4)
	b.Inputs[0].Segments = []wire.Segment{{Length: 16}, {Offset: 16, Length: 32}}
	send(t, s, 1, b, data[:16], data[16:])
	r, res := s.next(t)
	if res.ID != 5 || len(res.Outputs) != 1 || !bytes.Equal(bytes.Join(r.Tensors, nil), data) || res.Compute.Infer < 0 {
		t.Fatalf("%+v", res)
	}

	b, data = rowsBatch(6, 2, 4)
	b.Inputs[0].Segments = []wire.Segment{{Length: 32}}
	send(t, s, 2, b, data)
	for i := range uint32(2) {
		if err := s.call.Send(&worker.ExecuteRequest{Cancel: &worker.Cancel{Batch: 6, Request: i}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, res := s.next(t); res.ID != 6 || res.Code != infer.Cancelled || res.Err == "" {
		t.Fatalf("%+v, want Cancelled", res)
	}

	b, data = rowsBatch(7, 2, 4)
	b.Inputs[0].Segments = []wire.Segment{{Length: 32}}
	send(t, s, 99, b, data)
	if _, res := s.next(t); res.ID != 7 || res.Code != infer.NotFound {
		t.Fatalf("%+v, want NotFound", res)
	}
	b.ID = 8
	send(t, s, 1, b, data[:8])
	if _, res := s.next(t); res.ID != 8 || res.Code != infer.Internal {
		t.Fatalf("%+v, want Internal for a tensor that is too short", res)
	}
	if err := s.call.Send(&worker.ExecuteRequest{Batch: &worker.Batch{Handle: 1}}); err != nil {
		t.Fatal(err)
	}
	if r, ok := <-s.results; ok {
		t.Fatalf("nonsense was answered: %v", r)
	}
	wantCode(t, "nonsense", s.err, codes.InvalidArgument)
}

func send(t testing.TB, s *streamOf, handle uint64, b *wire.Batch, tensors ...[]byte) {
	t.Helper()
	if err := s.call.Send(&worker.ExecuteRequest{Batch: wire.BatchMessage(b, handle, 0), Tensors: tensors}); err != nil {
		t.Fatal(err)
	}
}

func TestWatchReportsAtOnce(t *testing.T) {
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: identityOnly()}, 4<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := rowsBatch(1, 1, 4)
	g.post(0, g.layOut(t, b, data))
	g.result(t)
	watch := must(g.client.Watch(ctx(t), &worker.WatchRequest{IntervalMs: 50}))(t)
	for range 2 {
		r := must(watch.Recv())(t)
		if r.ResidentBytes <= 0 || len(r.Models) != 1 || r.Models[0].Executions != 1 || len(r.Devices) != 1 {
			t.Errorf("%v", r)
		}
	}
}

func TestFailedLoadLeavesNothing(t *testing.T) {
	s := &scripted{failAt: 3}
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 4<<20)
	g.hello(t, true)
	_, err := g.client.Load(ctx(t), loadRequest(1, fp32Config(nil), 0, 1, 2))
	wantCode(t, "load", err, codes.Unavailable)
	if len(s.made) != 2 || !s.made[0].closed || !s.made[1].closed || s.closed != 1 {
		t.Errorf("made %d, model closed %d times", len(s.made), s.closed)
	}
	s.failAt = 0
	g.load(t, loadRequest(1, fp32Config(nil), 0, 1, 2))
	d := must(g.client.Describe(ctx(t), &worker.DescribeRequest{Backend: "identity", ModelFile: "/r/m/1/x"}))(t)
	if len(d.Inputs) != 1 || d.Inputs[0].Name != "x" {
		t.Errorf("Describe: %v", d)
	}
}

// brokenRule is a backend that keeps to the rules of a batch, or does not.
type brokenRule struct {
	name    string
	execute func(b backend.Batch) error
	want    []infer.Code // of each request; okay for success
}

func brokenRules(t *testing.T) []brokenRule {
	out := func(rows int64, data []byte) []infer.Tensor {
		return []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{rows, 1}, Data: data}}
	}
	boom := infer.Errorf(infer.InvalidArg, "boom")
	return []brokenRule{
		{"no answer", func(backend.Batch) error { return nil }, []infer.Code{infer.Internal, infer.Internal}},
		{"an error", func(backend.Batch) error { return boom }, []infer.Code{infer.InvalidArg, infer.InvalidArg}},
		{"a panic", func(backend.Batch) error { panic("at the backend") }, []infer.Code{infer.Internal, infer.Internal}},
		{"one failed, then the batch", func(b backend.Batch) error {
			return join(b.Fail(0, boom), b.Outputs(out(2, make([]byte, 8))))
		}, []infer.Code{infer.InvalidArg, okay}},
		{"one answered, then an error", func(b backend.Batch) error {
			return join(b.Respond(1, out(1, make([]byte, 4)), nil, true), boom)
		}, []infer.Code{infer.InvalidArg, okay}},
		{"answered twice", func(b backend.Batch) error {
			first := b.Outputs(out(2, make([]byte, 8)))
			if b.Outputs(out(2, make([]byte, 8))) == nil || b.Fail(0, boom) == nil || b.Respond(1, nil, nil, true) == nil {
				t.Error("a second answer was taken")
			}
			return first
		}, []infer.Code{okay, okay}},
		{"too few bytes", func(b backend.Batch) error { return b.Outputs(out(2, make([]byte, 7))) },
			[]infer.Code{infer.Internal, infer.Internal}},
		{"too few rows", func(b backend.Batch) error { return b.Outputs(out(1, make([]byte, 4))) },
			[]infer.Code{infer.Internal, infer.Internal}},
		{"too many strings", func(b backend.Batch) error {
			return b.Outputs([]infer.Tensor{{Name: "S", Datatype: infer.Bytes, Shape: []int64{2}, Data: make([]byte, 12)}})
		}, []infer.Code{infer.Internal, infer.Internal}},
		{"negative memory", func(b backend.Batch) error {
			_, err := b.Alloc(-1)
			return err
		}, []infer.Code{infer.Internal, infer.Internal}},
		{"parts", func(b backend.Batch) error {
			return join(b.Respond(0, out(1, make([]byte, 4)), nil, false), b.Respond(0, out(1, make([]byte, 4)), nil, true),
				b.Respond(1, nil, nil, true))
		}, []infer.Code{okay, okay}},
	}
}

// TestEveryRequestHasOneAnswer drives backends that break the rules.
func TestEveryRequestHasOneAnswer(t *testing.T) {
	tests := brokenRules(t)
	for _, lane := range []bool{true, false} {
		s := &scripted{}
		g := startLocal(t, workers.Config{}, scriptedDeps(s), 4<<20)
		g.hello(t, lane)
		g.load(t, loadRequest(1, fp32Config(nil), 0))
		var st *streamOf
		if !lane {
			st = openStream(t, g.client)
		}
		for i, tc := range tests {
			s.execute.Store(tc.execute)
			b, data := rowsBatch(uint64(i+1), 2, 1)
			b.Inputs[0].Segments = []wire.Segment{{Length: 8}}
			if lane {
				g.post(0, g.layOut(t, b, data))
			} else {
				send(t, st, 1, b, data)
			}
			var got [2]infer.Code
			answers := [2]int{}
			for more := true; more; {
				var res *wire.Result
				if lane {
					c, r := g.result(t)
					g.lane.Release(c.Token)
					res = r
				} else {
					_, res = st.next(t)
				}
				more = res.More
				collect(res, &got, &answers)
			}
			if answers != [2]int{1, 1} || got[0] != tc.want[0] || got[1] != tc.want[1] {
				t.Errorf("lane %v: %s: codes %v in %v final answers, want %v in one each", lane, tc.name, got, answers, tc.want)
			}
		}
	}
}

const okay = infer.Code(255)

// collect counts the final answers in res.
func collect(res *wire.Result, codes *[2]infer.Code, answers *[2]int) {
	code := func(c infer.Code, text string) infer.Code {
		if text == "" {
			return okay
		}
		return c
	}
	if len(res.Responses) == 0 && !res.More && (len(res.Outputs) > 0 || res.Err != "") {
		for i := range codes {
			codes[i] = code(res.Code, res.Err)
			answers[i]++
		}
	}
	for _, r := range res.Responses {
		if r.Final {
			codes[r.Index] = code(r.Code, r.Err)
			answers[r.Index]++
		}
	}
}

func join(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
