package drive

import "github.com/sluice-serve/sluice/infer"

// reply makes the response of a part, which has the part's reference to memory.
func (d *Driver) reply(it *item, p *part) (resp *infer.Response, err error) {
	if p.batch != nil {
		t := &it.req.Times
		t.ComputeStart, t.ComputeInputEnd = p.times.start, p.times.inputEnd
		t.ComputeOutputStart, t.ComputeEnd = p.times.outputStart, p.times.end
		t.BatchRows = p.times.rows
	}
	if p.err != nil {
		p.mem.Release()
		p.mem = nil
		return nil, p.err
	}
	resp, err = d.response(it, p)
	if err == nil && resp.Err != nil && !it.req.TakesErrors {
		err = resp.Err // whoever can't take it and more has it as the end
	}
	if err != nil {
		p.mem.Release()
		p.mem = nil
		return nil, err
	}
	resp.ID, resp.Model, resp.Version = it.req.ID, d.cfg.Model.Name, d.version
	resp.Final, resp.Memory = p.final, p.mem
	p.mem = nil
	return resp, nil
}

// cutResponse is a response with room for its outputs.
type cutResponse struct {
	infer.Response
	room [2]infer.Tensor
}

func (d *Driver) response(it *item, p *part) (*infer.Response, error) {
	if p.result == nil {
		if p.resp == nil {
			return &infer.Response{}, nil
		}
		p.resp.Outputs = asked(p.resp.Outputs, it.req.Outputs)
		return p.resp, nil
	}
	r := &cutResponse{}
	r.Outputs = r.room[:0]
	if p.batch.Rows == 0 && p.batch.cuts == nil {
		r.Outputs = asked(append(r.Outputs, p.result.Outputs...), it.req.Outputs)
		return &r.Response, nil
	}
	var err error
	for i := range p.result.Outputs {
		o := &p.result.Outputs[i]
		switch {
		case !wanted(o.Name, it.req.Outputs):
		case p.batch.cuts.Has(o.Name):
			var t infer.Tensor
			t, err = p.batch.cuts.Cut(o, p.index)
			r.Outputs = append(r.Outputs, t)
		case p.batch.Rows == 0:
			r.Outputs = append(r.Outputs, *o)
		default:
			r.Outputs, err = infer.Split(r.Outputs, p.result.Outputs[i:i+1], p.batch.Rows, p.first, it.Rows)
		}
		if err != nil {
			return nil, err
		}
	}
	return &r.Response, nil
}

func wanted(name string, outputs []infer.RequestedOutput) bool {
	for i := range outputs {
		if outputs[i].Name == name {
			return true
		}
	}
	return len(outputs) == 0
}

// asked drops the outputs that the request did not ask for.
func asked(have []infer.Tensor, outputs []infer.RequestedOutput) []infer.Tensor {
	if len(outputs) == 0 {
		return have
	}
	kept := have[:0]
	for i := range have {
		if wanted(have[i].Name, outputs) {
			kept = append(kept, have[i])
		}
	}
	return kept
}
