package pipeline

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/regions/regionstest"
	"github.com/sluice-serve/sluice/infer"
)

// echoing answers with its inputs, where it does not take them in places.
type echoing struct {
	*model
	takes bool
	saw   []infer.Tensor
	lies  error
	read  func(*infer.Request) // called when it has read the inputs; nil: nothing is
}

func (m *echoing) Places(*infer.Request) bool { return m.takes }
func (m *echoing) CheckBytes(*infer.Request) error {
	m.steps = append(m.steps, "check")
	return m.lies
}

func (m *echoing) Do(_ context.Context, req *infer.Request, send infer.SendFunc) error {
	m.steps = append(m.steps, "do")
	if m.fails != nil {
		return m.fails
	}
	m.saw = slices.Clone(req.Inputs)
	for i := range m.saw {
		m.saw[i].Data = slices.Clone(m.saw[i].Data) // the request's memory ends with it
	}
	for i := range req.Outputs {
		if m.takes != !req.Outputs[i].Place.IsZero() {
			return infer.Errorf(infer.Internal, "output %d has the place %+v", i, req.Outputs[i].Place)
		}
	}
	out := infer.Tensor{Name: "o", Datatype: infer.Uint8, Shape: []int64{4}}
	if m.takes {
		out.Place = req.Outputs[0].Place
	} else {
		out.Data = slices.Clone(req.Inputs[0].Data)
	}
	if m.read != nil {
		m.read(req)
	}
	return send(&infer.Response{Final: true, Outputs: []infer.Tensor{out}, Memory: infer.NewBuffer(nil, func(*infer.Buffer) { m.freed++ })})
}

type echoes struct {
	models
	echoing *echoing
}

func (m echoes) Acquire(context.Context, string, string) (Model, error) { return m.echoing, nil }

// own is a call of the user that this process is of.
func own() *infer.Envelope {
	return &infer.Envelope{Peer: infer.Peer{Known: true, UID: uint32(os.Getuid())}}
}

// placedRequest reads four bytes at 0 and writes to room bytes at 32.
func placedRequest(t *testing.T, r *regions.Registry, room uint64) *infer.Request {
	t.Helper()
	req := &infer.Request{Model: "m", Inputs: []infer.Tensor{{Name: "i", Datatype: infer.Uint8, Shape: []int64{4}}}, Outputs: []infer.RequestedOutput{{Name: "o"}}}
	uses := []regions.Use{{Region: "a", Size: 4}, {Region: "a", Offset: 32, Size: room, Output: true}}
	if err := r.Attach(own(), req, uses); err != nil {
		t.Fatal(err)
	}
	return req
}

// What instances take is named to them; for all others a worker reads and writes. However
// it ends, the references and the memory come back.
func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     echoing
		room  uint64
		cut   bool // the client's file, before
		gives bool // the inputs back, before its answer
		want  string
		code  infer.Code // of the error
		steps []string
	}{
		{name: "direct", m: echoing{takes: true}, room: 4, steps: []string{"validate", "do", "present", "done", "release"}},
		{name: "staged", room: 8, want: "data", steps: []string{"validate", "check", "do", "present", "done", "release"}},
		{name: "staged, inputs given back", room: 8, gives: true, want: "data", steps: []string{"validate", "check", "do", "present", "done", "release"}},
		{name: "too small", room: 3, code: infer.Internal, steps: []string{"validate", "check", "do", "failed", "release"}},
		{name: "truncated", room: 4, cut: true, code: infer.InvalidArg, steps: []string{"validate", "failed", "release"}},
		{name: "no text", m: echoing{lies: infer.Errorf(infer.InvalidArg, "short")}, room: 4, code: infer.InvalidArg,
			steps: []string{"validate", "check", "failed", "release"}},
		{name: "fails", m: echoing{model: &model{fails: infer.Errorf(infer.Unavailable, "full")}}, room: 4, code: infer.Unavailable,
			steps: []string{"validate", "check", "do", "failed", "release"}},
	} {
		for _, started := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				folder, err := os.MkdirTemp("/dev/shm", "test-pipeline-")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(folder)
				file := filepath.Join(folder, "memory")
				if err := os.WriteFile(file, append([]byte("data"), make([]byte, 60)...), 0o600); err != nil {
					t.Fatal(err)
				}
				workers := regionstest.New(t)
				r := workers.Registry(regions.Config{Folder: folder})
				if err := r.Register(t.Context(), own(), regions.Spec{Name: "a", Key: "memory", Size: 64}); err != nil {
					t.Fatal(err)
				}
				m := c.m
				fails := error(nil)
				if c.m.model != nil {
					fails = c.m.model.fails
				}
				m.model = &model{fails: fails}
				if c.gives {
					m.read = givesBack(t, r)
				}
				p := New(Config{}, Deps{Models: echoes{models{m.model}, &m}, Regions: workers})
				req := placedRequest(t, r, c.room)
				if c.cut {
					if err := os.Truncate(file, 0); err != nil {
						t.Fatal(err)
					}
				}
				answers := 0
				err = answered(t, p, req, placedSink{&answers, &err}, started)
				req.Memory.Release()
				if (err == nil) != (c.code == 0) || err != nil && infer.CodeOf(err) != c.code {
					t.Errorf("got %v, want %v", err, c.code)
				}
				if !slices.Equal(m.steps, c.steps) {
					t.Errorf("steps %q, want %q", m.steps, c.steps)
				}
				if ok := c.code == 0; ok != (answers == 1) || m.freed != len(m.saw) {
					t.Errorf("%d answers, memory freed %d times", answers, m.freed)
				}
				got, err := os.ReadFile(file)
				if err != nil || c.want != "" && string(got[32:36]) != c.want {
					t.Errorf("the file has %q, %v", got, err)
				}
				if r.InUse() != 0 {
					t.Errorf("%d references are held", r.InUse())
				}
			})
		}
	}
}

// givesBack gives a request's inputs back, and the region that its answer goes to must be held.
func givesBack(t *testing.T, r *regions.Registry) func(*infer.Request) {
	return func(req *infer.Request) {
		if req.ReleaseInputs(); r.InUse() == 0 {
			t.Error("nobody holds the region that the answer goes to")
		}
	}
}

// answered has a request answered, waited for or not.
func answered(t *testing.T, p *Pipeline, req *infer.Request, to placedSink, started bool) error {
	if !started {
		return carry(t.Context(), p, req, to.Send)
	}
	if wait := p.Start(t.Context(), req, to); wait != nil {
		wait()
	}
	return *to.err
}

// placedSink wants an answer whose output is in its place.
type placedSink struct {
	answers *int
	err     *error
}

func (s placedSink) Large(*infer.Response) bool { return false }

func (s placedSink) Send(resp *infer.Response) error {
	defer resp.Memory.Release()
	*s.answers++
	if o := resp.Outputs[0]; o.Place.IsZero() || o.Data != nil {
		return infer.Errorf(infer.Internal, "the answer has %+v", o)
	}
	return nil
}

func (s placedSink) Done(err error) infer.Flusher {
	*s.err = err
	return nil
}
