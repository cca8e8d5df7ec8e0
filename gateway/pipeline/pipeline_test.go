package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// model is a Model that answers with two outputs and keeps what happened, in order.
type model struct {
	steps     []string
	decoupled bool
	invalid   error
	fails     error
	panics    bool
	freed     int
}

func (m *model) Validate(*infer.Request) error {
	m.steps = append(m.steps, "validate")
	return m.invalid
}
func (m *model) Decoupled() bool                             { return m.decoupled }
func (m *model) VersionText() string                         { return "" }
func (m *model) Places(*infer.Request) bool                  { return false }
func (m *model) Brings(*infer.Tensor) bool                   { return false }
func (m *model) CheckBytes(*infer.Request) error             { return nil }
func (m *model) Turn(context.Context, *infer.Request) error  { return nil }
func (m *model) Current() *cache.Subject                     { return nil }
func (m *model) Batched() bool                               { return true }
func (m *model) Labels(string) []string                      { return []string{"cat", "dog"} }
func (m *model) Device() string                              { return "" }
func (m *model) Fit(_ string, _ bool, shape []int64) []int64 { return shape }

func (m *model) Start(context.Context, *infer.Request, infer.Sink) bool { return false }

func (m *model) Present(*infer.Response) { m.steps = append(m.steps, "present") }
func (m *model) Release()                { m.steps = append(m.steps, "release") }

func (m *model) Done(_ *infer.Request, err error) {
	if err != nil {
		m.steps = append(m.steps, "failed")
		return
	}
	m.steps = append(m.steps, "done")
}

func (m *model) Do(_ context.Context, req *infer.Request, send infer.SendFunc) error {
	m.steps = append(m.steps, "do")
	if m.panics {
		panic("a bug")
	}
	if m.fails != nil {
		return m.fails
	}
	scores := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(1)), math.Float32bits(2))
	return send(&infer.Response{ID: req.ID, Final: true,
		Outputs: []infer.Tensor{{Name: "scores", Datatype: infer.FP32, Shape: []int64{1, 2}, Data: scores}, {Name: "other", Datatype: infer.Bytes, Shape: []int64{0}}},
		Memory:  infer.NewBuffer(nil, func(*infer.Buffer) { m.freed++ })})
}

// over is a pipeline of one Models, and nothing else.
func over(m Models) *Pipeline { return New(Config{}, Deps{Models: m}) }

type models struct{ *model }

func (m models) Look(name, _ string) (decoupled bool, err error) {
	if name != "m" {
		return false, infer.Errorf(infer.NotFound, "no")
	}
	return m.decoupled, nil
}

func (m models) Acquire(_ context.Context, name, _ string) (Model, error) {
	if name != "m" {
		return nil, infer.Errorf(infer.NotFound, "no")
	}
	return m.model, nil
}

// Refused counts at the model what a front end could not even decode, and at nobody
// what names no model.
func TestRefusedIsCounted(t *testing.T) {
	full := infer.Refusef(infer.Unavailable, infer.ReasonMemory, "full")
	m := model{}
	p := over(models{&m})
	p.Refused(t.Context(), &infer.Request{Model: "x"}, full)
	p.Refused(t.Context(), &infer.Request{}, full)
	if len(m.steps) != 0 {
		t.Errorf("unknown models: %v", m.steps)
	}
	req := &infer.Request{Model: "m"}
	p.Refused(t.Context(), req, full)
	if want := []string{"failed", "release"}; !slices.Equal(m.steps, want) {
		t.Errorf("steps %v, want %v", m.steps, want)
	}
	if req.Times.RequestStart == 0 || req.Times.RequestEnd < req.Times.RequestStart {
		t.Errorf("times %+v", req.Times)
	}
}

func TestOrderOfSteps(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     model
		model string
		want  []string
		code  error
	}{
		{"answered", model{}, "m", []string{"validate", "do", "present", "done", "release"}, nil},
		{"unknown", model{}, "x", nil, infer.Errorf(infer.NotFound, "")},
		{"invalid", model{invalid: infer.Errorf(infer.InvalidArg, "bad")}, "m", []string{"validate", "failed", "release"}, infer.Errorf(infer.InvalidArg, "")},
		{"failed", model{fails: errors.New("x")}, "m", []string{"validate", "do", "failed", "release"}, errors.New("")},
		{"decoupled", model{decoupled: true}, "m", []string{"failed", "release"}, infer.ErrDecoupled},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := &infer.Request{Model: c.model}
			err := carry(t.Context(), over(models{&c.m}), req, func(r *infer.Response) error { r.Memory.Release(); return nil })
			if (err == nil) != (c.code == nil) || (err != nil && infer.CodeOf(err) != infer.CodeOf(c.code)) {
				t.Errorf("got error %v, want one like %v", err, c.code)
			}
			if len(c.m.steps) != len(c.want) {
				t.Fatalf("steps %q, want %q", c.m.steps, c.want)
			}
			for i := range c.want {
				if c.m.steps[i] != c.want[i] {
					t.Errorf("steps %q, want %q", c.m.steps, c.want)
				}
			}
			if c.model == "m" && (req.Times.RequestStart == 0 || req.Times.RequestEnd < req.Times.RequestStart) {
				t.Errorf("times %+v", req.Times)
			}
		})
	}
}

func TestClasses(t *testing.T) {
	m := &model{}
	req := &infer.Request{Model: "m", Outputs: []infer.RequestedOutput{{Name: "scores", Classification: 1}}}
	err := carry(t.Context(), over(models{m}), req, func(r *infer.Response) error {
		if len(r.Outputs) != 2 || r.Outputs[0].Datatype != infer.Bytes || string(r.Outputs[0].Data[4:]) != "2.000000:1:dog" {
			t.Errorf("got %+v", r.Outputs)
		}
		r.Memory.Release()
		return nil
	})
	if err != nil || m.freed != 1 {
		t.Errorf("error %v, memory freed %d times", err, m.freed)
	}
}

func TestClassesOfWhatHasNoOrder(t *testing.T) {
	m := &model{}
	req := &infer.Request{Model: "m", Outputs: []infer.RequestedOutput{{Name: "other", Classification: 1}}}
	err := carry(t.Context(), over(models{m}), req, func(*infer.Response) error { t.Error("sent"); return nil })
	if infer.CodeOf(err) != infer.InvalidArg || m.freed != 1 {
		t.Errorf("error %v, memory freed %d times", err, m.freed)
	}
}

// A front end that knows the model from the headers need not read a body in vain.
func TestOpenLooksAtTheModel(t *testing.T) {
	m := &model{decoupled: true}
	p := over(models{m})
	for _, c := range []struct {
		env  infer.Envelope
		want infer.Code
		ok   bool
	}{
		{infer.Envelope{Action: infer.ActionInference, Model: "x"}, infer.NotFound, false},
		{infer.Envelope{Action: infer.ActionInference, Model: "m"}, infer.Unsupported, false},
		{infer.Envelope{Action: infer.ActionInference, Model: "m", Streaming: true}, 0, true},
		{infer.Envelope{Action: infer.ActionMetadata, Model: "x"}, 0, true},
	} {
		_, err := p.Open(t.Context(), &c.env)
		if (err == nil) != c.ok || (err != nil && infer.CodeOf(err) != c.want) {
			t.Errorf("%+v: got %v, want success %v, code %s", c.env, err, c.ok, c.want)
		}
	}
}

func TestStop(t *testing.T) {
	p := over(models{})
	p.Stop()
	if _, err := p.Open(t.Context(), &infer.Envelope{Action: infer.ActionInference}); infer.ReasonOf(err) != infer.ReasonStopping {
		t.Errorf("inference: %v", err)
	}
	if _, err := p.Open(t.Context(), &infer.Envelope{Action: infer.ActionHealth}); err != nil {
		t.Errorf("health: %v", err)
	}
}

// A step passes what a request passes, is counted at its model, and stays pinned.
func TestStep(t *testing.T) {
	for _, row := range []struct {
		name  string
		model model
		want  []string
	}{
		{"answered", model{decoupled: true}, []string{"validate", "do", "present", "done"}},
		{"invalid", model{invalid: errors.New("no")}, []string{"validate", "failed"}},
		{"failed", model{fails: errors.New("no")}, []string{"validate", "do", "failed"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := row.model
			req := &infer.Request{Model: "m", Streaming: true}
			err := over(models{&m}).Step(t.Context(), &m, req, func(resp *infer.Response) error {
				resp.Memory.Release()
				return nil
			})
			if (err != nil) != (row.name != "answered") || !slices.Equal(m.steps, row.want) {
				t.Errorf("steps %v, %v; want %v", m.steps, err, row.want)
			}
			if req.Times.RequestStart == 0 || req.Times.RequestEnd < req.Times.RequestStart {
				t.Errorf("times %+v", req.Times)
			}
		})
	}
}
