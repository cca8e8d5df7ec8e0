package grpcapi

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

type clientStream = grpc.BidiStreamingClient[inference.ModelInferRequest, inference.ModelStreamInferResponse]

func openStream(ctx context.Context, t *testing.T, r *rig) clientStream {
	t.Helper()
	stream, err := r.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func streamed(model, id string) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{ModelName: model, Id: id, Inputs: []*inference.ModelInferRequest_InferInputTensor{
		{Name: "X", Datatype: "INT32", Shape: []int64{1}}}, RawInputContents: [][]byte{{1, 0, 0, 0}}}
}

func ask(t *testing.T, stream clientStream, requests ...*inference.ModelInferRequest) {
	t.Helper()
	for _, m := range requests {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
}

// told is all that a stream answers until its end, and its status.
func told(stream clientStream) (answers []string, err error) {
	for {
		m, err := stream.Recv()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return answers, err
		}
		answers = append(answers, textOf(m))
	}
}

func textOf(m *inference.ModelStreamInferResponse) string {
	r := m.InferResponse
	final := ""
	if p, ok := r.Parameters[finalParam]; ok {
		final = fmt.Sprint(" ", p.GetBoolParam())
	}
	if m.ErrorMessage != "" {
		return fmt.Sprintf("%s: %s%s", r.Id, m.ErrorMessage, final)
	}
	return fmt.Sprintf("%s %d%s", r.Id, len(r.Outputs), final)
}

// scripted is a pipeline of models: "many" is decoupled and answers thrice, "wait" answers
// when its gate opens, "fails" fails once it was queued, "nope" before.
func scripted(r *rig, gate chan struct{}) {
	r.pipeline.infer = func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
		switch req.Model {
		case "nope":
			return infer.Errorf(infer.NotFound, "no model")
		case "fails":
			req.Times.QueueStart = 1
			return infer.Errorf(infer.Internal, "broken")
		case "wait":
			select {
			case <-gate:
			case <-ctx.Done():
				return ctx.Err()
			}
		case "mixed":
			req.Decoupled = true
			for range 2 {
				err := infer.Errorf(infer.NotFound, "not this one")
				if !req.TakesErrors {
					return err
				}
				if err := send(&infer.Response{ID: req.ID, Model: req.Model, Err: err}); err != nil {
					return err
				}
				if err := send(r.pipeline.echo(req)); err != nil {
					return err
				}
			}
			return nil
		case "many":
			req.Decoupled = true
			for range 3 {
				resp := r.pipeline.echo(req)
				resp.Final = false
				if err := send(resp); err != nil {
					return err
				}
			}
			return send(&infer.Response{ID: req.ID, Model: req.Model, Final: true})
		}
		return send(r.pipeline.echo(req))
	}
}

func clean(t *testing.T, r *rig) {
	t.Helper()
	eventually(t, "all calls closed, all memory back", func() bool {
		return r.pipeline.opened.Load() == r.pipeline.closed.Load() && r.bodies.out.Load() == 0 && r.pipeline.memories.Load() == 0
	})
}

func wantAnswers(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("answers:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestStreamKeepsOrderOfOrdinaryModels(t *testing.T) {
	for _, standard := range []bool{false, true} {
		r := start(t, func(c *Config, _ *rig) { c.StandardCodec = standard })
		gate := make(chan struct{})
		scripted(r, gate)
		stream := openStream(t.Context(), t, r)
		ask(t, stream, streamed("wait", "a"), streamed("m", "b"), streamed("nope", "c"), streamed("fails", "d"), streamed("many", "e"), streamed("m", "f"))
		var free []string
		for range 3 { // those of the decoupled model don't wait
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			free = append(free, textOf(m))
		}
		wantAnswers(t, free, "e 1 false", "e 1 false", "e 1 false")
		close(gate)
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		got, err := told(stream)
		if err != nil {
			t.Fatal(err)
		}
		wantAnswers(t, got, "a 1 true", "b 1 true", "c: no model", "d: broken true", "f 1 true")
		clean(t, r)
	}
}

func TestStreamEmptyFinalResponse(t *testing.T) {
	r := start(t)
	scripted(r, nil)
	stream := openStream(t.Context(), t, r)
	m := streamed("many", "e")
	m.Parameters = map[string]*inference.InferParameter{emptyFinalParam: {ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: true}}}
	ask(t, stream, m)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := told(stream)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, got, "e 1 false", "e 1 false", "e 1 false", "e 0 true")
	clean(t, r)
}

// Errors of a decoupled model stand among its answers, and none is the last.
func TestStreamErrorsAmongAnswers(t *testing.T) {
	r := start(t)
	scripted(r, nil)
	stream := openStream(t.Context(), t, r)
	ask(t, stream, streamed("mixed", "a"))
	var got []*inference.ModelStreamInferResponse
	for range 4 {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
	}
	for i := range got {
		m := got[i]
		last := m.InferResponse.Parameters[finalParam].GetBoolParam()
		if i%2 == 1 && (m.ErrorMessage != "" || len(m.InferResponse.RawOutputContents) != 1) ||
			i%2 == 0 && (m.ErrorMessage != "not this one" || last || m.InferResponse.ModelName != "mixed" || m.InferResponse.Id != "a" || len(m.InferResponse.Outputs) > 0) {
			t.Errorf("message %d is %v", i, m)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	strict := openStream(metadata.AppendToOutgoingContext(t.Context(), strictKey, "true"), t, r)
	ask(t, strict, streamed("mixed", "b"))
	if _, err := strict.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("status %v, want the error's", err)
	}
	clean(t, r)
}

func TestStreamErrorAsStatus(t *testing.T) {
	r := start(t)
	scripted(r, nil)
	stream := openStream(metadata.AppendToOutgoingContext(t.Context(), strictKey, "true"), t, r)
	ask(t, stream, streamed("m", "a"), streamed("nope", "b"))
	got, err := told(stream)
	if status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no model" {
		t.Errorf("status %v, want the error's", err)
	}
	wantAnswers(t, got, "a 1 true")
	clean(t, r)
}

// A client that goes away takes all its requests with it.
func TestStreamCancelled(t *testing.T) {
	r := start(t)
	scripted(r, make(chan struct{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := openStream(ctx, t, r)
	for i := range 10 {
		ask(t, stream, streamed("wait", fmt.Sprint(i)))
	}
	eventually(t, "all begun", func() bool { return r.pipeline.opened.Load() == 11 })
	cancel()
	clean(t, r)
}

// No more than so many requests are taken at a time, and the rest is served later.
func TestStreamBoundsRequestsInFlight(t *testing.T) {
	r := start(t)
	gate := make(chan struct{})
	scripted(r, gate)
	stream := openStream(t.Context(), t, r)
	const n = maxInFlight + 50
	for i := range n {
		ask(t, stream, streamed("wait", fmt.Sprint(i)))
	}
	eventually(t, "as many as may be", func() bool { return r.pipeline.opened.Load() == 1+maxInFlight })
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if got := r.pipeline.opened.Load(); got != 1+maxInFlight {
		t.Errorf("%d calls opened, want %d", got, 1+maxInFlight)
	}
	close(gate)
	got, err := told(stream)
	if err != nil || len(got) != n {
		t.Fatalf("%d answers, %v, want %d", len(got), err, n)
	}
	for i, s := range got {
		if s != fmt.Sprintf("%d 1 true", i) {
			t.Fatalf("answer %d is %q", i, s)
		}
	}
	clean(t, r)
}

// A client that takes nothing does not make a decoupled model's answers pile up.
func TestStreamSlowReader(t *testing.T) {
	r := start(t)
	var sent atomic.Int64
	r.pipeline.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		req.Decoupled, req.Times.QueueStart = true, 1
		for {
			sent.Add(64 << 10)
			if err := send(&infer.Response{ID: req.ID, Outputs: []infer.Tensor{{Name: "O", Datatype: infer.Uint8, Shape: []int64{64 << 10},
				Data: make([]byte, 64<<10)}}}); err != nil {
				return err
			}
		}
	}
	stream := openStream(t.Context(), t, r)
	ask(t, stream, streamed("m", "a"))
	eventually(t, "the request has ended", func() bool { return r.pipeline.closed.Load() == 1 })
	if n := sent.Load(); n > maxWaiting+(1<<20) {
		t.Errorf("%d bytes were made before the end, want about %d", n, maxWaiting)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := told(stream)
	if err != nil || len(got) == 0 || !strings.Contains(got[len(got)-1], "the answers are not taken") {
		t.Errorf("%d answers, %v, the last %q", len(got), err, got[len(got)-1:])
	}
	clean(t, r)
}

// Requests of one sequence are served one after the other.
func TestStreamSequences(t *testing.T) {
	r := start(t)
	var mu sync.Mutex
	running, order := map[uint64]bool{}, map[uint64][]string{}
	r.pipeline.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		mu.Lock()
		id := req.Correlation.ID
		if running[id] {
			t.Errorf("two requests of sequence %d at a time", id)
		}
		running[id] = true
		order[id] = append(order[id], req.ID)
		mu.Unlock()
		time.AfterFunc(0, func() {}) // lets others run
		mu.Lock()
		running[id] = false
		mu.Unlock()
		return send(r.pipeline.echo(req))
	}
	stream := openStream(t.Context(), t, r)
	for i := range 60 {
		m := streamed("m", fmt.Sprint(i))
		m.Parameters = map[string]*inference.InferParameter{"sequence_id": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(1 + i%3)}}}
		ask(t, stream, m)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if got, err := told(stream); err != nil || len(got) != 60 {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	for id, ids := range order {
		for i, s := range ids {
			if s != fmt.Sprint(int(id)-1+3*i) {
				t.Errorf("sequence %d: request %d is %s", id, i, s)
			}
		}
	}
	clean(t, r)
}

// A stream without anything in flight does not hold up a server that stops.
func TestStreamEndsWhenStopping(t *testing.T) {
	r := start(t)
	scripted(r, nil)
	stream := openStream(t.Context(), t, r)
	ask(t, stream, streamed("m", "a"))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	r.server.service.Stop()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != stoppingText {
		t.Errorf("status %v, want Unavailable", err)
	}
	clean(t, r)
}

// TestStreamRandomSchedules lets requests of all kinds end in any order: nothing is lost,
// nothing comes twice, what is ordinary keeps its order, and what is decoupled its own.
func TestStreamRandomSchedules(t *testing.T) {
	r := start(t)
	r.pipeline.infer = func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
		for range rand.IntN(4) {
			select {
			case <-time.After(time.Duration(rand.IntN(300)) * time.Microsecond):
			case <-ctx.Done():
			}
		}
		if req.Model == "fails" {
			return infer.Errorf(infer.Internal, "broken")
		}
		if req.Decoupled = req.Model == "many"; req.Decoupled {
			for i := range 3 {
				resp := r.pipeline.echo(req)
				resp.ID, resp.Final = fmt.Sprint(req.ID, ".", i), false
				if err := send(resp); err != nil {
					return err
				}
			}
			return nil
		}
		return send(r.pipeline.echo(req))
	}
	for range 20 {
		stream := openStream(t.Context(), t, r)
		var ordinary, many []string
		for i := range 100 {
			model := []string{"m", "m", "fails", "many"}[rand.IntN(4)]
			ask(t, stream, streamed(model, fmt.Sprint(i)))
			switch model {
			case "many":
				many = append(many, fmt.Sprint(i))
			default:
				ordinary = append(ordinary, fmt.Sprint(i))
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		got, err := told(stream)
		if err != nil {
			t.Fatal(err)
		}
		next := map[string]int{}
		for _, s := range got {
			id, _, _ := strings.Cut(strings.ReplaceAll(s, ":", " "), " ")
			if whole, part, ok := strings.Cut(id, "."); ok {
				if part != fmt.Sprint(next[whole]) {
					t.Fatalf("answer %s of %s, want %d", part, whole, next[whole])
				}
				next[whole]++
				continue
			}
			if len(ordinary) == 0 || id != ordinary[0] {
				t.Fatalf("answer to %s, want the one to %v", id, ordinary)
			}
			ordinary = ordinary[1:]
		}
		for _, id := range many {
			if next[id] != 3 {
				t.Errorf("%d answers to %s, want 3", next[id], id)
			}
		}
		if len(ordinary) > 0 {
			t.Errorf("no answers to %v", ordinary)
		}
	}
	clean(t, r)
}
