package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// fakeCalls answers calls of model "echo" with their inputs, in memory of the heap and of the
// request as it is; those of "wait" when they are cancelled.
type fakeCalls struct {
	mu    sync.Mutex
	calls []seenCall // guarded by mu
	gone  []string   // guarded by mu: models
	open  atomic.Int32
	most  int32 // guarded by mu: calls that were open at a time
}

type seenCall struct {
	from  *Calling
	req   *infer.Request
	cause error // why a call of "wait" ended
}

func (f *fakeCalls) Infer(ctx context.Context, from *Calling, req *infer.Request, to infer.Sink) func() {
	f.mu.Lock()
	at := len(f.calls)
	f.calls = append(f.calls, seenCall{from: from, req: req})
	f.most = max(f.most, f.open.Add(1))
	f.mu.Unlock()
	req.Trace.Fail(nil)
	return func() {
		defer f.open.Add(-1)
		if req.Model == "wait" {
			<-ctx.Done()
			f.mu.Lock()
			f.calls[at].cause = context.Cause(ctx)
			f.mu.Unlock()
			to.Done(infer.Errorf(infer.Cancelled, "cancelled: %w", context.Cause(ctx)))
			return
		}
		if req.Model == "read" {
			outputs := []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{0}}}
			req.ReleaseInputs()
			to.Done(to.Send(&infer.Response{Outputs: outputs, Final: true}))
			return
		}
		outputs := []infer.Tensor{req.Inputs[0], {Name: "OUTPUT1", Datatype: infer.Uint8, Shape: []int64{3}, Data: []byte{1, 2, 3}}}
		outputs[0].Name = "OUTPUT0"
		if req.Inputs[0].Data != nil {
			req.Memory.Retain()
		}
		to.Done(to.Send(&infer.Response{Outputs: outputs, Memory: req.Memory, Final: true}))
	}
}

func (f *fakeCalls) Do(_ context.Context, _ *Calling, call *workerpb.Call) (*workerpb.CallAnswer, error) {
	if m := call.GetReady().GetModel(); m != "echo" {
		return nil, infer.Errorf(infer.NotFound, "no model %q", m)
	}
	return &workerpb.CallAnswer{Ready: true}, nil
}

func (f *fakeCalls) Forget(from *Calling) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, from.Model)
}

func (f *fakeCalls) seen() []seenCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]seenCall(nil), f.calls...)
}

// composed is a batch of one request for the compose backend.
func composed(columns int, params infer.Params) (*infer.Batch, chan *infer.Result) {
	b, results := newBatch(1, columns)
	b.Rows = 0
	b.Inputs = b.Inputs[:1]
	b.Inputs[0].Shape = []int64{int64(columns)}
	b.Requests[0].Params = params
	return b, results
}

func param(name string, value any) infer.Param {
	p := infer.Param{Name: name}
	switch v := value.(type) {
	case string:
		p.Value = infer.Value{Kind: infer.KindString, Str: v}
	case int:
		p.Value = infer.Value{Kind: infer.KindInt64, Int: int64(v)}
	case bool:
		p.Value = infer.Value{Kind: infer.KindBool, Bool: v}
	}
	return p
}

// eachCaller runs a test over the lane and the stream, with small memory for answers.
func eachCaller(t *testing.T, test func(t *testing.T, w *Workers, v *Version, f *fakeCalls)) {
	for name, stream := range map[string]bool{"lane": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			f := &fakeCalls{}
			w := startWith(t, Config{Local: []LocalWorker{as("worker")}, UseStream: stream, ResponseArena: 1 << 20, Backoff: time.Millisecond},
				Deps{Log: logger(t), Calls: f})
			s := spec(1, nil)
			s.Backend, s.Config.Backend = "compose", "compose"
			v := load(t, w, s)
			defer unload(t, v)
			test(t, w, v, f)
		})
	}
}

func answerOf(t *testing.T, r *infer.Result) []infer.Tensor {
	t.Helper()
	if r.Err == nil && len(r.Responses) == 1 && r.Responses[0].Err != nil {
		r.Err = r.Responses[0].Err
	}
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Responses[0].Response.Outputs
}

// No memory of a call or an answer stays on either side: there is none for a thousand of them.
func TestCallsGiveMemoryBack(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		b, results := composed(16<<10, infer.Params{param("call", "echo"), param("times", 200)})
		v.Executor(0).Execute(b)
		r := wait(t, results)
		got := answerOf(t, r)
		if len(got) != 2 || string(got[0].Data) != string(b.Inputs[0].Segments[0]) || string(got[1].Data) != "\x01\x02\x03" {
			t.Errorf("the answer has %d outputs, or others than the call's", len(got))
		}
		r.Memory.Release()
		if n := len(f.seen()); n != 200 {
			t.Errorf("%d calls were seen, want 200", n)
		}
	})
}

// A called model may give a call's inputs back before its answer: they go once.
func TestCallsWhoseInputsAreGivenBack(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		b, results := composed(16<<10, infer.Params{param("call", "read"), param("times", 200)})
		v.Executor(0).Execute(b)
		r := wait(t, results)
		if got := answerOf(t, r); len(got) != 1 || len(got[0].Data) != 0 {
			t.Errorf("the answer has %d outputs, or others than the call's", len(got))
		}
		r.Memory.Release()
	})
}

// A call takes from its request who it is for and what it waits for; one without a request is
// the model's own.
func TestCallsTakeFromTheirRequest(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		who := &infer.Principal{Name: "alice"}
		family := &infer.TraceFamily{IDs: new(atomic.Uint64), Sink: func(*infer.TraceFamily) {}}
		b, results := composed(4, infer.Params{param("call", "echo")})
		q := b.Requests[0]
		q.ID, q.Tenant, q.Caller, q.Priority, q.Depth, q.Weight = "r1", "blue", "alice", 3, 4, 5
		q.Timeout, q.Times.RequestStart = time.Hour, infer.Now()
		q.Origin = &infer.Envelope{Principal: who, Path: "/x", Header: func(string) string { return "" }}
		q.Trace = family.Begin("m", "r1")
		v.Executor(0).Execute(b)
		wait(t, results).Memory.Release()
		b, results = composed(4, infer.Params{param("call", "echo"), param("alone", true)})
		v.Executor(0).Execute(b)
		wait(t, results).Memory.Release()
		seen := f.seen()
		got, own := seen[0].req, seen[1].req
		if got.ID != "r1" || got.Tenant != "blue" || got.Caller != "alice" || got.Priority != 3 || got.Depth != 5 || got.Weight != 5 {
			t.Errorf("the call is %+v", got)
		}
		if got.Timeout <= 0 || got.Timeout > time.Hour || got.Origin.Principal != who || got.Origin.Path != "" || got.Origin.Header != nil {
			t.Errorf("the call has the timeout %v and comes from %+v", got.Timeout, got.Origin)
		}
		if got.Within == nil || got.Within.Instance != v.executors[0] || got.Within.Within != nil {
			t.Errorf("its ancestor is %+v", got.Within)
		}
		if got.Trace == nil || got.Trace.Parent != q.Trace.ID || got.Trace.Model != "echo" {
			t.Errorf("its trace is %+v", got.Trace)
		}
		if own.Caller != "model:m" || own.Origin.Principal.Name != "model:m" || own.Within != nil || own.Depth != 0 || seen[1].from.Call != own.Origin {
			t.Errorf("the model's own call is %+v", own)
		}
	})
}

// Cancelling a request, and its worker's end, end what was called for it.
func TestCallsEndWithTheirRequest(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		b, results := composed(4, infer.Params{param("call", "wait")})
		v.Executor(0).Execute(b)
		eventually(t, "the call is open", func() bool { return f.open.Load() == 1 })
		v.Executor(0).Cancel(b, 0)
		if r := wait(t, results); r.Responses[0].Err == nil || infer.CodeOf(r.Responses[0].Err) != infer.Cancelled {
			t.Errorf("the cancelled request ended with %+v", r)
		}
		eventually(t, "its call has ended", func() bool { return f.open.Load() == 0 })
		b, results = composed(4, infer.Params{param("call", "wait")})
		v.Executor(0).Execute(b)
		eventually(t, "the call is open", func() bool { return f.open.Load() == 1 })
		w.kill()
		if r := wait(t, results); !errors.Is(r.Err, infer.ErrWorkerLost) {
			t.Errorf("the request of a lost worker ended with %v", r.Err)
		}
		eventually(t, "the call has ended", func() bool { return f.open.Load() == 0 })
		if cause := f.seen()[1].cause; !errors.Is(cause, infer.ErrWorkerLost) {
			t.Errorf("it was cancelled for %v", cause)
		}
		eventually(t, "the worker is back", func() bool { return w.workers[0].listed(v.groups[0]) })
	})
}

func (w *worker) listed(g *group) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return g.session != nil
}

// More calls than a model may have open are refused, and all end.
func TestCallsAreBounded(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		b, results := composed(4, infer.Params{param("call", "wait"), param("at_once", maxModelCalls+10)})
		v.Executor(0).Execute(b)
		r := wait(t, results)
		if err := r.Responses[0].Err; err == nil || !strings.Contains(err.Error(), "may have 256 calls open") {
			t.Errorf("the request ended with %v", err)
		}
		eventually(t, "all calls have ended", func() bool { return f.open.Load() == 0 })
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.most != maxModelCalls {
			t.Errorf("%d calls were open, want %d", f.most, maxModelCalls)
		}
	})
}

// A model that calls its own gateway for another's readiness has one answer, or its error.
func TestCallsReady(t *testing.T) {
	eachCaller(t, func(t *testing.T, w *Workers, v *Version, f *fakeCalls) {
		for model, want := range map[string]string{"echo": "", "other": `no model "other"`} {
			b, results := composed(4, infer.Params{param("do", "ready"), param("call", model)})
			v.Executor(0).Execute(b)
			r := wait(t, results)
			if err := r.Responses[0].Err; (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("%s: got %v", model, err)
			}
			r.Memory.Release()
		}
	})
}

// lieInCalls completes what no worker may, of calls.
func (l *liar) lieInCalls(kind string, handle uint64) error {
	call := wire.Call{ID: 1, Handle: handle, Model: "wait"}
	c := shm.Completion{Kind: shm.Called, Batch: 1}
	times := 1
	switch kind {
	case "calls without id":
		call.ID = 0
	case "calls twice with one id":
		times = 2
	case "calls with an input outside":
		call.Inputs = []wire.Output{{Name: "x", Datatype: infer.Uint8, Shape: []int64{4}, Data: wire.Segment{Offset: wire.InAnswers | 1<<40, Length: 4}}}
	case "calls with an input of others": // it lies in the arena that all workers read
		call.Inputs = []wire.Output{{Name: "x", Datatype: infer.Uint8, Shape: []int64{4}, Data: wire.Segment{Length: 4}}}
	case "calls of no instance":
		call.Batch, call.Instance = 1, 9
	case "calls with garbage":
		call.Inputs = []wire.Output{{Name: "x", Datatype: infer.FP32, Shape: []int64{4}, Data: wire.Segment{Offset: wire.InAnswers, Length: 1}}}
	case "calls of another kind":
		c.Kind = 9
	case "calls give back an answer that is not theirs":
		return l.shared.Lane.Complete(shm.Completion{Kind: shm.AnswerTaken, Token: 5})
	}
	for range times {
		d := wire.AppendCall(nil, &call)
		mem, err := l.shared.Responses.Alloc(int64(len(d)))
		if err != nil {
			return err
		}
		copy(mem, d)
		c.Offset, _ = l.shared.Responses.Offset(mem)
		c.Length = int64(len(d))
		if err := l.shared.Lane.Complete(c); err != nil {
			return err
		}
	}
	return nil
}

// Calls serves nothing: this liar calls through the lane.
func (l *liar) Calls(s workerpb.Worker_CallsServer) error {
	<-s.Context().Done()
	return nil
}

// A worker whose calls break the rules is lost; the log says why.
func TestLiesInCalls(t *testing.T) {
	for kind, want := range map[string]string{
		"calls without id":                             "without id",
		"calls twice with one id":                      "the id of one that is open: 1",
		"calls with an input outside":                  "outside",
		"calls with an input of others":                "does not lie in the worker's memory",
		"calls of no instance":                         "instance 9",
		"calls with garbage":                           "has 1 bytes, want 16",
		"calls of another kind":                        "kind 9",
		"calls give back an answer that is not theirs": "which it does not have",
	} {
		t.Run(kind, func(t *testing.T) {
			log := &lockedText{}
			liar := as("liar")
			liar.Env = append(liar.Env, lieEnv+"="+kind)
			f := &fakeCalls{}
			w := startWith(t, Config{Local: []LocalWorker{liar}, Backoff: time.Hour}, Deps{Log: slog.New(slog.NewTextHandler(log, nil)), Calls: f})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			loaded := make(chan struct{})
			go func() {
				defer close(loaded)
				if v, err := w.Load(ctx, spec(1, nil)); err == nil {
					unload(t, v)
				}
			}()
			eventually(t, fmt.Sprintf("the log says %q", want), func() bool { return strings.Contains(log.String(), want) })
			eventually(t, "no call is open", func() bool { return f.open.Load() == 0 })
			cancel()
			<-loaded
		})
	}
}

// lockedText is a log's text.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// liesInCalls says whether a liar lies so, and in place of everything else.
func liesInCalls() bool { return strings.HasPrefix(os.Getenv(lieEnv), "calls") }

// An error's text in an answer is bounded, and text whatever it was: protobuf sends no other.
func TestRefusalsAreText(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", maxErrorText-1) + "é", "a\xffb"} {
		a := refusal(1, errors.New(text))
		if !utf8.ValidString(a.Err) || len(a.Err) > maxErrorText+2 || a.Err == "" {
			t.Errorf("an answer of %d bytes, text: %v", len(a.Err), utf8.ValidString(a.Err))
		}
	}
}
