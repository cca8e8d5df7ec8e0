package python

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// output is what the config says of one.
type output struct {
	datatype infer.Datatype
	dims     []int64 // without the batch dimension; -1: any
	free     bool    // its first dimension is not the request's rows
}

// outputsOf reads a config's outputs, and the states' that a model answers with.
func outputsOf(c *modelconfig.ModelConfig) map[string]output {
	all := map[string]output{}
	for _, out := range c.GetOutput() {
		dims := out.GetDims()
		if r := out.GetReshape(); r != nil {
			dims = r.GetShape()
		}
		all[out.GetName()] = output{datatype: infer.Datatype(out.GetDataType()), dims: dims}
	}
	for _, s := range c.GetSequenceBatching().GetState() {
		all[s.GetOutputName()] = output{datatype: infer.Datatype(s.GetDataType()), dims: s.GetDims()}
	}
	for _, b := range c.GetBatchOutput() {
		for _, name := range b.GetTargetName() {
			if out, ok := all[name]; ok {
				out.free = true
				all[name] = out
			}
		}
	}
	return all
}

// outputsOf makes x.outputs of what the process sent for a request: those that it wants, as the
// config has them. The caller holds mu.
func (x *batch) outputsOf(r backend.Request, sent []channel.Tensor) error {
	x.outputs = x.outputs[:0]
	for i := range sent {
		t := &sent[i]
		said, ok := x.run.model().outputs[t.Name]
		if !ok {
			return infer.Errorf(infer.Internal, "model '%s' gave an output '%s', which its config does not have",
				x.run.model().spec.Name, t.Name)
		}
		if err := x.run.model().checkOutput(&said, &t.Tensor, r.Rows()); err != nil {
			return err
		}
		if !r.Wants(t.Name) {
			continue
		}
		out := t.Tensor
		if t.Segment.Area != channel.InFrame {
			data, err := x.sent(t.Segment)
			if err != nil {
				x.run.kill(err)
				return x.run.lost()
			}
			out.Data = data
		}
		x.outputs = append(x.outputs, out)
	}
	return nil
}

// sent is the bytes of an answer's segment: of the batch's grant, or of other memory that was
// given to the process. The caller holds mu.
func (x *batch) sent(s channel.Segment) ([]byte, error) {
	if s.Area != channel.InAnswer {
		return x.run.channel.Exchange.Answered(s)
	}
	g := x.grant
	if x.room == nil || s.Offset < g.Offset || s.Length > g.Length || s.Offset-g.Offset > g.Length-s.Length {
		return nil, fmt.Errorf("%w: %d bytes at %d of the response arena, which it was not given",
			channel.ErrCorrupt, s.Length, s.Offset)
	}
	at := s.Offset - g.Offset
	return x.room[at : at+s.Length : at+s.Length], nil
}

// checkOutput refuses what contradicts the config.
func (m *model) checkOutput(said *output, t *infer.Tensor, rows int) error {
	if said.datatype != t.Datatype {
		return infer.Errorf(infer.Internal,
			"model '%s', output '%s': the model gave datatype %v, its configuration says %v",
			m.spec.Name, t.Name, modelconfig.DataType(t.Datatype), modelconfig.DataType(said.datatype))
	}
	if !slices.ContainsFunc(t.Shape, func(d int64) bool { return d != 1 }) {
		return nil // one element goes as it is: the runner warns of it
	}
	shape, want := t.Shape, int64(-1)
	if m.batches {
		if want = int64(rows); m.decoupled || said.free {
			want = -1
		}
		if len(shape) == 0 || want >= 0 && shape[0] != want {
			return m.wrongShape(said, t, rows)
		}
		shape = shape[1:]
	}
	if len(shape) != len(said.dims) || slices.ContainsFunc(shape, func(d int64) bool { return d < 0 }) {
		return m.wrongShape(said, t, rows)
	}
	for i, d := range said.dims {
		if d != -1 && d != shape[i] {
			return m.wrongShape(said, t, rows)
		}
	}
	return nil
}

func (m *model) wrongShape(said *output, t *infer.Tensor, rows int) error {
	want := slices.Clone(said.dims)
	if m.batches {
		want = slices.Insert(want, 0, int64(rows))
	}
	return infer.Errorf(infer.Internal, "model '%s', output '%s': the model gave shape %s, its configuration says %s",
		m.spec.Name, t.Name, shapeText(t.Shape), shapeText(want))
}

// shapeText is a shape as Python writes a list.
func shapeText(shape []int64) string { return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ") }
