package client

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// describeResult says what a result is, and releases it.
func describeResult(r *infer.Result) (s string) {
	defer r.Memory.Release()
	if r.Err != nil {
		return fmt.Sprint(infer.CodeOf(r.Err), " ", infer.ReasonOf(r.Err))
	}
	if r.Free {
		s += "free "
	}
	if r.InputsRead {
		s += "read "
	}
	if r.More && r.Outputs != nil {
		s += "of all " // also an empty one is an answer
	}
	for _, p := range r.Responses {
		switch {
		case p.Err != nil:
			s += fmt.Sprint(infer.CodeOf(p.Err), " ")
		case p.Response.Err != nil:
			s += fmt.Sprint(infer.CodeOf(p.Response.Err), " on ")
		default:
			for _, o := range p.Response.Outputs {
				s += fmt.Sprintf("%s=%d ", o.Name, o.Data[0])
			}
		}
	}
	if !r.More {
		s += "end"
	}
	return s
}

func expect(t *testing.T, results chan *infer.Result, want string) {
	t.Helper()
	if got := describeResult(wait(t, results)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A worker that frees a batch twice, or more than it said that it would, is replaced, and so is one that says
// of inputs that they are read where they can't be, or names them as an answer then.
func TestLiarFrees(t *testing.T) {
	for kind, first := range map[string]string{"frees twice": "free ", "frees without room": "", "frees at the end": "",
		"read before free": "", "read twice": "free read ", "passes what is read": "free read "} {
		t.Run(kind, func(t *testing.T) {
			l := as("liar")
			l.Env = append(l.Env, lieEnv+"="+kind)
			w := start(t, Config{Local: []LocalWorker{l}, Backoff: time.Millisecond, KillAfter: 10 * time.Millisecond})
			v := load(t, w, spec(1, nil))
			b, results := newBatch(1, 4)
			v.Executor(0).Execute(b)
			if first != "" {
				expect(t, results, first)
			}
			if r := wait(t, results); !errors.Is(r.Err, infer.ErrWorkerLost) {
				t.Errorf("got %+v", r)
			}
			eventually(t, "a restart", func() bool { return w.States()[0].Restarts > 0 })
		})
	}
}

// A worker that wants more open requests than there may be loads nothing.
func TestLiarWantsTooMuch(t *testing.T) {
	l := as("liar")
	l.Env = append(l.Env, lieEnv+"=too many open requests")
	w := start(t, Config{Local: []LocalWorker{l}, KillAfter: 10 * time.Millisecond})
	if _, err := w.Load(t.Context(), spec(1, nil)); infer.CodeOf(err) != infer.Internal {
		t.Errorf("got %v", err)
	}
}

// nowhere is a link that takes all batches.
type nowhere struct{ cancelled, forgotten []string }

func (*nowhere) post(*executor) error { return nil }

func (n *nowhere) cancel(batch uint64, _ []uint32, i int) {
	n.cancelled = append(n.cancelled, fmt.Sprint(batch, "/", i))
}

func (n *nowhere) forget(batch uint64) { n.forgotten = append(n.forgotten, fmt.Sprint(batch)) }

// The bound counts the requests of freed batches until their end.
func TestOpenRequestsAreCounted(t *testing.T) {
	l := &nowhere{}
	e := &executor{}
	e.attach(l, nil, 1, &workerpb.LoadResponse{OpenRequests: 3}, false)
	batch := func(id uint64, requests int) *infer.Batch {
		b := &infer.Batch{ID: id, Requests: make([]*infer.Request, requests), Deliver: func(*infer.Result) {}}
		for i := range b.Requests {
			b.Requests[i] = &infer.Request{}
		}
		e.Execute(b)
		return b
	}
	one := batch(1, 2)
	if _, err := e.part(one, nil, &infer.Result{More: true, Free: true}); err != nil {
		t.Error(err)
	}
	two := batch(2, 2)
	if _, err := e.part(two, nil, &infer.Result{More: true, Free: true}); infer.CodeOf(err) != infer.Internal {
		t.Errorf("4 requests are open: %v", err)
	}
	e.Cancel(one, 1)
	e.Cancel(two, 0)
	e.Cancel(one, 7)
	e.finish(one, &infer.Result{})
	e.Cancel(one, 1)
	if got := fmt.Sprint(l.cancelled); got != "[1/1 2/0]" {
		t.Errorf("cancelled %s", got)
	}
	if _, err := e.part(two, nil, &infer.Result{More: true, Free: true}); err != nil {
		t.Error(err)
	}
	over := e.ended()
	e.finish(two, &infer.Result{})
	select {
	case <-over:
	default:
		t.Error("a batch seems to be in flight")
	}
	if e.ended() != nil || e.opens.requests != 0 {
		t.Errorf("%d requests are open", e.opens.requests)
	}
}
