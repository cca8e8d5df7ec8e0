package pipeline

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// executePlaced is execute for a request with tensors in clients' memory. Its answers are
// in no cache: they lie elsewhere, and its inputs change without notice.
func (p *Pipeline) executePlaced(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if p.subject(m) != nil {
		next := send
		send = func(resp *infer.Response) error {
			resp.Cache = infer.CacheBypass
			return next(resp)
		}
	}
	if m.Places(req) {
		return m.Do(ctx, req, send)
	}
	return p.staged(ctx, m, req, send)
}

// staged executes a request whose tensors a worker reads before and writes behind it.
func (p *Pipeline) staged(ctx context.Context, m Model, req *infer.Request, send infer.SendFunc) error {
	if p.deps.Regions == nil {
		return infer.ErrNoRegions()
	}
	regions := req.Memory // the outputs go there, however early the inputs are given back
	regions.Retain()
	defer regions.Release()
	if err := p.bring(ctx, m, req); err != nil {
		return err
	}
	if err := m.CheckBytes(req); err != nil {
		return err
	}
	places := make([]infer.RequestedOutput, 0, len(req.Outputs))
	for i := range req.Outputs {
		if o := &req.Outputs[i]; !o.Place.IsZero() {
			places = append(places, *o)
			o.Place = infer.Place{}
		}
	}
	return m.Do(ctx, req, func(resp *infer.Response) error {
		for i := range resp.Outputs {
			if err := p.store(ctx, places, &resp.Outputs[i]); err != nil {
				resp.Memory.Release()
				return err
			}
		}
		return send(resp)
	})
}

// bring reads the inputs that lie in clients' memory, but for those that the model has read
// itself. Their memory goes with the request's own.
func (p *Pipeline) bring(ctx context.Context, m Model, req *infer.Request) error {
	var came []*infer.Buffer
	drop := func() {
		for _, b := range came {
			b.Release()
		}
	}
	for i := range req.Inputs {
		t := &req.Inputs[i]
		if t.Place.IsZero() || m.Brings(t) {
			continue
		}
		b, err := p.deps.Regions.ReadPlace(ctx, t.Place)
		if err != nil {
			drop()
			return err
		}
		came = append(came, b)
		t.Data, t.Place = b.Data, infer.Place{}
	}
	if len(came) == 0 {
		return nil
	}
	own := req.Memory
	req.Memory = infer.NewBuffer(nil, func(*infer.Buffer) {
		drop()
		own.Release()
	})
	return nil
}

// store writes an output to its place, if it has one.
func (p *Pipeline) store(ctx context.Context, places []infer.RequestedOutput, o *infer.Tensor) error {
	for i := range places {
		if places[i].Name != o.Name {
			continue
		}
		place := places[i].Place
		if n := int64(len(o.Data)); n > place.Size {
			return errRoom(o.Name, place.Size, n)
		} else if n > 0 {
			if err := p.deps.Regions.WritePlace(ctx, place, o.Data); err != nil {
				return err
			}
		}
		o.Place, o.Data = place, nil
	}
	return nil
}

// errRoom is Triton's word on an output that is larger than its place.
func errRoom(output string, room, want int64) error {
	return infer.CallerErrorf("shared memory size specified with the request for output '%s' (%d bytes) should be "+
		"at least %d bytes to hold the results", output, room, want)
}
