package ragged

import (
	"encoding/binary"
	"math"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

const (
	maxCount = math.MaxInt32 // what INT32 holds
	maxItems = 1 << 24       // values of one item shape input
)

// Check refuses a request whose numbers a batch_input can't hold, before it can spoil a
// batch: InvalidArg.
func (p *Plan) Check(req *infer.Request) error {
	if p == nil {
		return nil
	}
	for i := range p.inputs {
		c := &p.inputs[i]
		if err := c.check(req); err != nil {
			return err
		}
	}
	return nil
}

func (c *computed) check(req *infer.Request) error {
	t := find(req, c.source)
	if t == nil || len(t.Shape) == 0 {
		return nil
	}
	if c.kind == modelconfig.BatchInput_BATCH_ITEM_SHAPE || c.kind == modelconfig.BatchInput_BATCH_ITEM_SHAPE_FLATTEN {
		for _, d := range t.Shape[1:] {
			if d > maxCount {
				return infer.Errorf(infer.InvalidArg, "%sinput '%s' of shape %v has a dimension that is more than '%s' can tell", req.Prefix(),
					c.source, t.Shape, c.name())
			}
		}
		if rank := int64(len(t.Shape) - 1); rank > 0 && t.Shape[0] > maxItems/rank {
			return infer.Errorf(infer.InvalidArg, "%sinput '%s' of shape %v has more rows than '%s' can tell", req.Prefix(), c.source, t.Shape, c.name())
		}
		return nil
	}
	n, err := c.count(req)
	if err == nil && c.datatype == infer.Int32 && n > maxCount {
		err = c.tooMany()
	}
	if err != nil {
		return infer.Errorf(infer.InvalidArg, "%s%w", req.Prefix(), err)
	}
	return nil
}

func (c *computed) tooMany() error {
	return infer.Errorf(infer.InvalidArg, "input '%s' has more elements than the %d that '%s' can count", c.source, maxCount, c.name())
}

// Gather lays out an input of a batch from the requests that have it, each request's
// data as one segment. It fails where the requests' shapes don't fit together (Internal:
// whoever chose the batch was to see to that).
func (p *Plan) Gather(name string, datatype infer.Datatype, requests []*infer.Request) (infer.BatchInput, error) {
	in := infer.BatchInput{Name: name, Datatype: datatype, Layout: p.Layout(name)}
	for _, req := range requests {
		t := find(req, name)
		if t == nil {
			continue
		}
		if in.Layout == infer.Shared && in.Shape != nil {
			continue
		}
		if len(t.Data) > 0 {
			in.Segments = append(in.Segments, t.Data)
		}
		switch {
		case in.Layout == infer.Ragged:
		case in.Shape == nil:
			in.Shape = append([]int64{}, t.Shape...)
		case len(in.Shape) == 0 || len(t.Shape) == 0:
			return in, infer.Errorf(infer.Internal, "input '%s' has no dimension that a batch could grow in", name)
		default:
			in.Shape[0] += t.Shape[0]
		}
	}
	if in.Layout == infer.Ragged {
		return in, p.Describe(&in, requests)
	}
	return in, nil
}

// Describe gives a Ragged input the shape of the whole batch and its requests' extents.
func (p *Plan) Describe(in *infer.BatchInput, requests []*infer.Request) error {
	in.Extents = make([][]int64, len(requests))
	dims := make([]int64, 0, 4*len(requests)) // the extents' memory, and the batch's shape
	var sum int64
	for i, req := range requests {
		at := len(dims)
		if t := find(req, in.Name); t != nil {
			dims = append(dims, t.Shape...)
		} else {
			dims = append(dims, 0)
		}
		in.Extents[i] = dims[at:len(dims):len(dims)]
		n, err := infer.Elements(in.Extents[i])
		if err != nil {
			return infer.Errorf(infer.InvalidArg, "input '%s': %w", in.Name, err)
		}
		if n > math.MaxInt64-sum {
			return infer.Errorf(infer.InvalidArg, "input '%s': the batch has more elements than fit in 64 bits", in.Name)
		}
		sum += n
	}
	in.Shape = append(in.Shape[:0], sum)
	return nil
}

// Compute appends the inputs that the config's batch_input asks for. The requests'
// tensors have the backend's shapes. It fails where a count is more than INT32 holds.
func (p *Plan) Compute(inputs []infer.BatchInput, requests []*infer.Request) ([]infer.BatchInput, error) {
	if p == nil {
		return inputs, nil
	}
	for i := range p.inputs {
		c := &p.inputs[i]
		shape, data, err := c.compute(requests)
		if err != nil {
			return nil, err
		}
		for _, name := range c.targets {
			in := infer.BatchInput{Name: name, Datatype: c.datatype, Shape: shape, Layout: infer.Computed}
			if len(data) > 0 {
				in.Segments = [][]byte{data}
			}
			inputs = append(inputs, in)
		}
	}
	return inputs, nil
}

// values is a tensor of FP32 or INT32 that is being written.
type values struct {
	data []byte
	fp   bool
}

func (v *values) add(n int64) {
	bits := uint32(int32(n))
	if v.fp {
		bits = math.Float32bits(float32(n))
	}
	v.data = binary.LittleEndian.AppendUint32(v.data, bits)
}

func (c *computed) compute(requests []*infer.Request) (shape []int64, data []byte, err error) {
	switch c.kind {
	case modelconfig.BatchInput_BATCH_ITEM_SHAPE, modelconfig.BatchInput_BATCH_ITEM_SHAPE_FLATTEN:
		return c.itemShapes(requests)
	}
	v := values{fp: c.datatype == infer.FP32}
	var sum, most int64
	if c.kind == modelconfig.BatchInput_BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO {
		v.add(0)
	}
	for _, req := range requests {
		n, err := c.count(req)
		if err != nil {
			return nil, nil, err
		}
		if sum += n; !v.fp && sum > maxCount {
			return nil, nil, c.tooMany()
		}
		most = max(most, n)
		switch c.kind {
		case modelconfig.BatchInput_BATCH_ELEMENT_COUNT:
			v.add(n)
		case modelconfig.BatchInput_BATCH_ACCUMULATED_ELEMENT_COUNT, modelconfig.BatchInput_BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
			v.add(sum)
		}
	}
	if c.kind == modelconfig.BatchInput_BATCH_MAX_ELEMENT_COUNT_AS_SHAPE {
		return []int64{most}, make([]byte, 4*most), nil // the shape says it all
	}
	return []int64{int64(len(v.data) / 4)}, v.data, nil
}

func (c *computed) name() string {
	if len(c.targets) == 0 {
		return c.kind.String()
	}
	return c.targets[0]
}

// count is the elements of a request's source input, batch dimension included.
func (c *computed) count(req *infer.Request) (int64, error) {
	t := find(req, c.source)
	if t == nil {
		return 0, nil
	}
	n, err := infer.Elements(t.Shape)
	if err != nil {
		return 0, infer.Errorf(infer.InvalidArg, "input '%s': %w", c.source, err)
	}
	return min(n, math.MaxInt64/int64(8<<20)), nil // no batch has so many requests that sums overflow
}

// itemShapes are the dimensions behind the batch dimension, once for each row.
func (c *computed) itemShapes(requests []*infer.Request) ([]int64, []byte, error) {
	v := values{fp: c.datatype == infer.FP32}
	var rows int64
	rank := 0
	for _, req := range requests {
		t := find(req, c.source)
		if t == nil || len(t.Shape) == 0 {
			continue
		}
		item := t.Shape[1:]
		rank = len(item)
		if rank == 0 {
			rows += t.Shape[0]
			continue
		}
		if t.Shape[0] > (maxItems-rows)/int64(rank) {
			return nil, nil, infer.Errorf(infer.InvalidArg, "input '%s' of shape %v has more rows than '%s' can tell", c.source, t.Shape, c.name())
		}
		rows += t.Shape[0]
		for range t.Shape[0] {
			for _, d := range item {
				v.add(d)
			}
		}
	}
	if c.kind == modelconfig.BatchInput_BATCH_ITEM_SHAPE {
		return []int64{rows, int64(rank)}, v.data, nil
	}
	return []int64{int64(len(v.data) / 4)}, v.data, nil
}
