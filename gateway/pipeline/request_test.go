package pipeline

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/local"
	"github.com/sluice-serve/sluice/infer"
)

// sink keeps what a started request came to.
type sink struct {
	answers, ends, flushes int
	err                    error
	fails                  error
	panics                 bool
	large                  bool
}

func (s *sink) Large(*infer.Response) bool { return s.large }

func (s *sink) Send(r *infer.Response) error {
	s.answers++
	r.Memory.Release()
	if s.panics {
		panic("a bug")
	}
	return s.fails
}

func (s *sink) Done(err error) infer.Flusher {
	s.ends++
	s.err = err
	return s
}

func (s *sink) Flush() { s.flushes++ }

// quick is a model that may be started; its requests end when finish is called.
type quick struct {
	*model
	to  infer.Sink
	req *infer.Request
}

func (m *quick) Start(_ context.Context, req *infer.Request, to infer.Sink) bool {
	m.steps = append(m.steps, "start")
	m.to, m.req = to, req
	return true
}

func (m *quick) finish(err error) {
	if err == nil {
		err = m.model.Do(context.Background(), m.req, m.to.Send)
	}
	infer.Flush(m.to.Done(err))
}

type quicks struct {
	models
	quick *quick
}

func (m *quick) models() Models { return quicks{models{m.model}, m} }

func (m quicks) Acquire(_ context.Context, name, _ string) (Model, error) {
	if name != "m" {
		return nil, infer.Errorf(infer.NotFound, "no")
	}
	return m.quick, nil
}

// A started request takes the steps of Infer, with its end where its answer comes from.
func TestStart(t *testing.T) {
	bad := errors.New("bad")
	for _, c := range []struct {
		name  string
		m     model
		model string
		end   error // of the scheduler
		sink  sink
		want  []string
		err   error // nil: success
	}{
		{"answered", model{}, "m", nil, sink{}, []string{"validate", "start", "do", "present", "done", "release"}, nil},
		{"unknown", model{}, "x", nil, sink{}, nil, infer.Errorf(infer.NotFound, "")},
		{"invalid", model{invalid: bad}, "m", nil, sink{}, []string{"validate", "failed", "release"}, bad},
		{"decoupled", model{decoupled: true}, "m", nil, sink{}, []string{"failed", "release"}, infer.ErrDecoupled},
		{"failed", model{}, "m", bad, sink{}, []string{"validate", "start", "failed", "release"}, bad},
		{"unsendable", model{}, "m", nil, sink{fails: bad}, []string{"validate", "start", "do", "present", "failed", "release"}, bad},
		{"panic", model{}, "m", nil, sink{panics: true}, []string{"validate", "start", "do", "present", "failed", "release"}, bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, to := &quick{model: &c.m}, c.sink
			p := over(m.models())
			if wait := p.Start(t.Context(), &infer.Request{Model: c.model}, &to); wait != nil {
				t.Fatal("somebody has to wait")
			}
			if m.to != nil {
				if to.ends != 0 {
					t.Error("ended before its answer")
				}
				m.finish(c.end)
			}
			if !slices.Equal(m.steps, c.want) || to.ends != 1 || to.flushes != 1 {
				t.Errorf("steps %q, want %q; %d ends, %d flushes", m.steps, c.want, to.ends, to.flushes)
			}
			if (to.err == nil) != (c.err == nil) || to.err != nil && infer.CodeOf(to.err) != infer.CodeOf(c.err) {
				t.Errorf("got %v, want one like %v", to.err, c.err)
			}
		})
	}
}

// A model that can't be started has its caller wait.
func TestStartOfWhatWaits(t *testing.T) {
	m, to := &model{}, sink{}
	wait := over(models{m}).Start(t.Context(), &infer.Request{Model: "m"}, &to)
	if wait == nil || to.ends != 0 {
		t.Fatal("nobody waits")
	}
	wait()
	if want := []string{"validate", "do", "present", "done", "release"}; !slices.Equal(m.steps, want) || to.ends != 1 || to.answers != 1 {
		t.Errorf("steps %q, want %q; %+v", m.steps, want, to)
	}
}

// A hit of a local cache is answered at once; what is not in it is waited for.
func TestStartLooksIntoTheCache(t *testing.T) {
	m := &model{}
	p := keep(m, local.New(local.Config{Size: 1 << 20}))
	for i, miss := range []bool{true, false, false} {
		to := sink{}
		wait := p.Start(t.Context(), &infer.Request{Model: "m"}, &to)
		if (wait != nil) != miss {
			t.Fatalf("request %d: waits: %v", i, wait != nil)
		}
		if wait != nil {
			wait()
		}
		if to.ends != 1 || to.answers != 1 || to.err != nil {
			t.Errorf("request %d: %+v", i, to)
		}
	}
}

// A hit that takes long to send is sent by who waits, and its end comes then.
func TestStartOfALargeHit(t *testing.T) {
	m := &model{}
	p := keep(m, local.New(local.Config{Size: 1 << 20}))
	for i := range 3 {
		to := sink{large: true}
		wait := p.Start(t.Context(), &infer.Request{Model: "m"}, &to)
		if wait == nil || to.answers != 0 || to.ends != 0 {
			t.Fatalf("request %d: waits: %v, %+v", i, wait != nil, to)
		}
		wait()
		if to.ends != 1 || to.answers != 1 || to.err != nil || to.flushes != 1 {
			t.Errorf("request %d: %+v", i, to)
		}
	}
	if want := []string{"validate", "do", "present", "done", "release"}; !slices.Equal(m.steps[:5], want) || slices.Contains(m.steps[5:], "do") {
		t.Errorf("steps %q", m.steps)
	}
}

// broken is a level that has a bug.
type broken struct{ cache.Level }

func (broken) Quick() bool { return true }

func (broken) Lookup(context.Context, *cache.Query) *cache.Entry { panic("a bug") }

// A bug in the cache ends the one request, which lets go of its model.
func TestStartOfABrokenCache(t *testing.T) {
	m := &model{}
	p := keep(m, broken{})
	to := sink{}
	if wait := p.Start(t.Context(), &infer.Request{Model: "m"}, &to); wait != nil {
		t.Error("somebody has to wait")
	}
	if want := []string{"validate", "failed", "release"}; !slices.Equal(m.steps, want) || to.ends != 1 || infer.CodeOf(to.err) != infer.Internal {
		t.Errorf("steps %q, want %q; %+v", m.steps, want, to)
	}
}

// patient is an Admission that waits.
type patient struct{}

func (patient) Open(context.Context, *infer.Envelope) error   { return nil }
func (patient) Request(context.Context, *infer.Request) error { return nil }
func (patient) Close(*infer.Envelope, *infer.End)             {}
func (patient) Waits() bool                                   { return true }

// Limits that wait are not waited for by who must not block.
func TestStartBehindPatientLimits(t *testing.T) {
	m, to := &quick{model: &model{}}, sink{}
	p := New(Config{}, Deps{Models: m.models(), Admission: patient{}})
	wait := p.Start(t.Context(), &infer.Request{Model: "m"}, &to)
	if wait == nil || len(m.steps) != 0 {
		t.Fatalf("nobody waits; steps %q", m.steps)
	}
	wait()
	if to.ends != 1 || to.answers != 1 || to.err != nil || to.flushes != 1 {
		t.Errorf("%+v", to)
	}
}

// early records in which step it was asked.
type early struct {
	patient
	steps *[]string
}

func (e early) Open(context.Context, *infer.Envelope) error {
	*e.steps = append(*e.steps, "limits")
	return nil
}

type doorman struct{ steps *[]string }

func (d doorman) Open(context.Context, *infer.Envelope) error {
	*d.steps = append(*d.steps, "rights")
	return nil
}

func (d doorman) Model(*infer.Envelope, string) error { return nil }

// Open decides on rights at once, and leaves limits that wait to its caller.
func TestOpenBehindPatientLimits(t *testing.T) {
	var steps []string
	p := New(Config{}, Deps{Models: models{&model{}}, Guard: doorman{&steps}, Admission: early{steps: &steps}})
	env := &infer.Envelope{Protocol: "grpc", Action: infer.ActionInference}
	wait, err := p.Open(t.Context(), env)
	if err != nil || wait == nil || !slices.Equal(steps, []string{"rights"}) {
		t.Fatalf("%v, %v", steps, err)
	}
	if err := wait(); err != nil || !slices.Equal(steps, []string{"rights", "limits"}) {
		t.Fatalf("%v, %v", steps, err)
	}
	p.Close(env, &infer.End{})
	if n := p.InFlight("grpc"); n != 0 {
		t.Errorf("%d calls in flight", n)
	}
	p.Stop()
	if _, err := p.Open(t.Context(), env); infer.ReasonOf(err) != infer.ReasonStopping {
		t.Errorf("while it stops: %v", err)
	}
	p.Close(env, &infer.End{})
}
