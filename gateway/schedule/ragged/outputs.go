package ragged

import (
	"github.com/sluice-serve/sluice/infer"
)

// Cuts are the requests' parts of the outputs of one batch that batch_output names. The
// nil Cuts has none.
type Cuts struct {
	parts map[string][]part // by output; one for each request
}

type part struct {
	first, count int64
	shape        []int64
}

// Cuts computes the parts from the shapes of the requests' source inputs: an output's
// variable dimensions are those of the source at the same places. It fails where a
// source has no such dimension, or the parts are more than fit in 64 bits.
func (p *Plan) Cuts(requests []*infer.Request) (*Cuts, error) {
	if !p.Scatters() {
		return nil, nil
	}
	c := &Cuts{parts: make(map[string][]part, len(p.outputs))}
	for name, s := range p.outputs {
		parts := make([]part, len(requests))
		var first int64
		for i, req := range requests {
			shape, err := s.shape(name, find(req, s.source))
			if err != nil {
				return nil, err
			}
			n, err := infer.Elements(shape)
			if err != nil || n > 1<<62-first {
				return nil, infer.Errorf(infer.InvalidArg, "output '%s' of shape %v is more than any memory holds", name, shape)
			}
			parts[i] = part{first: first, count: n, shape: shape}
			first += n
		}
		c.parts[name] = parts
	}
	return c, nil
}

func (s *scattered) shape(name string, source *infer.Tensor) ([]int64, error) {
	shape := append([]int64{}, s.dims...)
	for i, d := range shape {
		if d != -1 {
			continue
		}
		if source == nil {
			shape[i] = 0 // a place in the batch that nobody is in
			continue
		}
		if i >= len(source.Shape) {
			return nil, infer.Errorf(infer.InvalidArg, "output '%s' takes its dimension %d from input '%s', which has %d dimensions",
				name, i, s.source, len(source.Shape))
		}
		shape[i] = source.Shape[i]
	}
	return shape, nil
}

// Has says that an output is cut by these parts and not by rows.
func (c *Cuts) Has(output string) bool {
	if c == nil {
		return false
	}
	_, ok := c.parts[output]
	return ok
}

// Cut is the part of request i, with a fresh shape. An output that is too small is an
// error of the model: Internal.
func (c *Cuts) Cut(o *infer.Tensor, i int) (infer.Tensor, error) {
	p := &c.parts[o.Name][i]
	return infer.SplitElements(o, p.first, p.count, append([]int64{}, p.shape...))
}
