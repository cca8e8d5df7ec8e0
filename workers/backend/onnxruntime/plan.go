//go:build onnxruntime && cgo

package onnxruntime

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// plans are a model version's inputs and outputs as its instances need them. They are
// read-only but for output.declared.
type plans struct {
	inputs  []input
	outputs []output
	batched bool // the first dimension of all tensors is the batch's rows
}

type input struct {
	name     string
	typ      ort.Type
	datatype infer.Datatype
	scalar   bool // the model wants it without dimensions
}

type output struct {
	name     string
	typ      ort.Type
	datatype infer.Datatype
	dims     []dim
	shape    []int64 // of the answer in place of the model's; nil: the model's
	// declared says that dims hold: the output's shape is known before the run. It
	// is cleared for good when a run shows otherwise.
	declared atomic.Bool
}

// dim is one dimension of an output before the run.
type dim struct {
	size  int64 // where from is fixed
	from  source
	input int // where from is sameAs: an input and its dimension
	axis  int
}

type source uint8

const (
	fixed  source = iota
	rows          // of the batch
	sameAs        // an input's dimension, which has the same name in the model
)

func newPlans(cfg *modelconfig.ModelConfig, s *ort.Session) *plans {
	p := &plans{
		inputs:  make([]input, len(s.Inputs)),
		outputs: make([]output, len(s.Outputs)),
		batched: cfg.GetMaxBatchSize() > 0,
	}
	for i, t := range s.Inputs {
		p.inputs[i] = input{name: t.Name, typ: t.Type, datatype: datatypeOf(t.Type), scalar: t.Rank == 0}
	}
	for i := range s.Outputs {
		p.output(i, cfg, s)
	}
	return p
}

func (p *plans) output(i int, cfg *modelconfig.ModelConfig, s *ort.Session) {
	t, o := &s.Outputs[i], &p.outputs[i]
	byRow := p.batched && !batchOutput(cfg, t.Name)
	o.name, o.typ, o.datatype = t.Name, t.Type, datatypeOf(t.Type)
	o.dims = make([]dim, len(t.Shape))
	declared := t.Rank >= 0 && o.datatype != infer.Bytes
	for axis, size := range t.Shape {
		d := dim{size: size}
		switch {
		case axis == 0 && byRow:
			d.from = rows
		case size < 0:
			var ok bool
			d.from = sameAs
			d.input, d.axis, ok = sameDimension(s.Inputs, t.Symbols[axis])
			declared = declared && ok
		}
		o.dims[axis] = d
	}
	o.declared.Store(declared)
	if t.Rank != 0 {
		return
	}
	// Source: the original answers a scalar in the shape of ones that the configuration gives it.
	for _, c := range cfg.GetOutput() {
		if dims := outputDims(c); c.GetName() == t.Name && !slices.ContainsFunc(dims, func(d int64) bool { return d != 1 }) {
			o.shape = dims
		}
	}
}

// sameDimension finds an input's dimension by its name in the model.
func sameDimension(inputs []ort.TensorInfo, symbol string) (in, axis int, ok bool) {
	if symbol == "" {
		return 0, 0, false
	}
	for i, t := range inputs {
		if t.Optional {
			continue
		}
		if axis := slices.Index(t.Symbols, symbol); axis >= 0 {
			return i, axis, true
		}
	}
	return 0, 0, false
}

// resolve appends the output's shape to shape, from the rows of the batch and the
// shapes of the inputs by their indexes (nil where absent).
func (o *output) resolve(shape []int64, batchRows int64, inputs [][]int64) ([]int64, bool) {
	for i := range o.dims {
		d := &o.dims[i]
		size := d.size
		switch d.from {
		case rows:
			size = batchRows
		case sameAs:
			if d.axis >= len(inputs[d.input]) {
				return shape, false
			}
			size = inputs[d.input][d.axis]
		}
		shape = append(shape, size)
	}
	return shape, true
}
