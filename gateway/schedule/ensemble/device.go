package ensemble

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// requested is what a step is asked for. An output may stay in the device memory that it is made
// in where the steps that read it take it there, and it is no output of the ensemble.
func (r *runner) requested(step int) []infer.RequestedOutput {
	n := &r.s.graph.nodes[step]
	device := r.pins[step].Device()
	if device == "" || r.onHost {
		return n.requested
	}
	outputs := n.requested
	for i, o := range n.out {
		if !r.stays(o.tensor, device) {
			continue
		}
		if &outputs[0] == &n.requested[0] {
			outputs = slices.Clone(outputs)
		}
		outputs[i].Resident = true
	}
	return outputs
}

// bring reads the inputs of the request that lie in clients' memory and can't be given to the
// steps there. Their values are in f.
func (r *runner) bring(f *frame) error {
	for _, t := range r.s.graph.inputs {
		v := &f.values[t]
		place := v.tensor.Place
		if place.IsZero() || r.reached(t, place) {
			continue
		}
		b, err := r.s.deps.Steps.Bring(r.ctx, place)
		if err != nil {
			return err
		}
		v.mem.Release()
		v.mem, v.tensor.Data, v.tensor.Place = b, b.Data, infer.Place{}
	}
	return nil
}

// reached says that all who want a tensor in a client's memory read it there.
func (r *runner) reached(tensor int, place infer.Place) bool {
	p := r.run.p
	if p.wanted[tensor] {
		return false
	}
	for _, reader := range p.g.readers[tensor] {
		if p.needed[reader] && !r.pins[reader].Reaches(place) {
			return false
		}
	}
	return true
}

// mayRepeat says that the steps may run once more after a failure: none of them has a state that
// the request changed, and nobody has a part of the answer.
func (r *runner) mayRepeat() bool {
	return r.run != nil && !r.run.p.streams && r.run.sent == 0 && !r.broken && r.req.Correlation == (infer.Correlation{})
}

// stays says that all who want a tensor take it in a device's memory.
func (r *runner) stays(tensor int, device string) bool {
	p := r.run.p
	if p.wanted[tensor] || p.uses[tensor] == 0 {
		return false
	}
	for _, reader := range p.g.readers[tensor] {
		if p.needed[reader] && r.pins[reader].Device() != device {
			return false
		}
	}
	return true
}
