package gateway

import (
	"context"

	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// steps is the way of an ensemble to the models of its steps.
type steps struct {
	models   *repository.Repository
	pipeline *pipeline.Pipeline
	regions  infer.Regions
	own      string // the ensemble's namespace
}

// Pin fits schedule.Steps.
func (s steps) Pin(ctx context.Context, model *schedule.StepModel) (schedule.Pinned, error) {
	m, err := s.models.AcquireStep(ctx, s.own, repository.Need(*model))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Call fits schedule.Steps.
func (s steps) Call(ctx context.Context, m schedule.Pinned, req *infer.Request, send infer.SendFunc) error {
	v, err := stepOf(m, req)
	if err != nil {
		return err
	}
	return s.pipeline.Step(ctx, v, req, send)
}

// Bring fits schedule.Steps.
func (s steps) Bring(ctx context.Context, p infer.Place) (*infer.Buffer, error) {
	return s.regions.ReadPlace(ctx, p)
}

// Start fits calls.Steps.
func (s steps) Start(ctx context.Context, m schedule.Pinned, req *infer.Request, to infer.Sink) (wait func()) {
	v, err := stepOf(m, req)
	if err != nil {
		m.Release()
		req.Trace.Fail(err)
		infer.Flush(to.Done(err))
		return nil
	}
	return s.pipeline.StartStep(ctx, v, req, to)
}

// stepOf is the model of a step, which can serve the request.
func stepOf(m schedule.Pinned, req *infer.Request) (*repository.Model, error) {
	v, ok := m.(*repository.Model)
	if !ok {
		return nil, infer.Errorf(infer.Internal, "%smodel '%s' can't be a step", req.Prefix(), req.Model)
	}
	if req.Within.Stuck(v.Executors()) {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonCallCycle,
			"%smodel '%s' is called for a request that all of its instances wait for: "+
				"it calls itself, directly or through others, and has %d",
			req.Prefix(), req.Model, len(v.Executors()))
	}
	return v, nil
}

// layout is the memory for a model's batches. Sequences keep state in theirs, so they
// name nothing of a worker's own.
func (g *Gateway) layout(m *repository.Model) schedule.Memory {
	if m.Config.GetSequenceBatching() != nil {
		return g.workers.Memory()
	}
	return g.workers.Layout()
}
