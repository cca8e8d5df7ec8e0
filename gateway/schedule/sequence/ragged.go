package sequence

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// gather lays out the requests' inputs of a model with ragged batches: each where it
// lies, for whoever sends the batch to copy. Null requests have a tensor of the lead's
// shape, of zeros or empty strings, as in the original.
func (s *stage) gather(b *infer.Batch, lead *infer.Request) error {
	for i, r := range s.requests {
		if r == nil {
			b.Requests[i] = s.nullOf(b.Requests[i], lead)
		}
	}
	for _, name := range s.cfg.Model.Inputs {
		t := find(lead.Inputs, name)
		if t == nil {
			continue
		}
		in, err := s.cfg.Model.Ragged.Gather(name, t.Datatype, b.Requests)
		if err != nil {
			return err
		}
		b.Inputs = append(b.Inputs, in)
	}
	return nil
}

// nullOf is a null request with inputs.
func (s *stage) nullOf(null, lead *infer.Request) *infer.Request {
	own := *null
	own.Inputs = slices.Clone(lead.Inputs)
	for i := range own.Inputs {
		t := &own.Inputs[i]
		t.Data = make([]byte, len(s.nothing(t.Datatype, t.Shape, len(t.Data))))
	}
	return &own
}
