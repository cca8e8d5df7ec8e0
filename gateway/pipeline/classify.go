package pipeline

import (
	"cmp"
	"context"

	"github.com/sluice-serve/sluice/gateway/classification"
	"github.com/sluice-serve/sluice/infer"
)

// classify puts classes in the place of the outputs for which the request asks for them. The response's memory then
// has that of the classes too. What is already made when an error occurs is given back with the response's memory.
func (p *Pipeline) classify(ctx context.Context, m Model, req *infer.Request, resp *infer.Response) error {
	left := p.cfg.ClassBytes // clients choose how many there are
	for i := range req.Outputs {
		k := req.Outputs[i].Classification
		if k == 0 {
			continue
		}
		for j := range resp.Outputs {
			out := &resp.Outputs[j]
			if out.Name != req.Outputs[i].Name {
				continue
			}
			top, memory, err := classification.Top(ctx, *out, classification.Ask{K: k, Batched: m.Batched(),
				Labels: m.Labels(out.Name), MaxBytes: left, Budget: p.deps.Responses})
			if err != nil {
				return err
			}
			left -= int64(len(top.Data))
			*out = top
			resp.Memory = both(resp.Memory, memory)
		}
	}
	return nil
}

// both is memory that holds a reference to each of two, which may be nil, until its last release.
func both(a, b *infer.Buffer) *infer.Buffer {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return infer.NewBuffer(nil, func(*infer.Buffer) {
		a.Release()
		b.Release()
	})
}
