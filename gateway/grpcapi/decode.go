package grpcapi

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
)

// tensorAlign is where a tensor that is copied starts: at a multiple of it, as
// kernels of backends like it best.
const tensorAlign = 64

func alignUp(n int64) int64 { return (n + tensorAlign - 1) &^ (tensorAlign - 1) }

// decoder is the scratch memory of decoding one ModelInferRequest, and what is known of those
// before. Nothing of it lives in the decoded request but the strings.
// Source: message ModelInferRequest, proto/inference/grpc_service.proto.
type decoder struct {
	names    names
	params   []param    // of the request
	tensor   []param    // of the tensor that is read
	raws     [][]byte   // raw_input_contents in order
	contents []contents // of each input
	head     []byte     // what gather copies out of the frames
	spans    []span
	heads    heads
}

// contents is an encoded InferTensorContents, as far as the input has one.
type contents struct {
	data   []byte
	set    bool
	own    bool // data was put together, and is no view on the message
	shared bool // the tensor lies in a region
}

// maxKeptScratch bounds what a decoder keeps for the next request.
const maxKeptScratch = 64 << 10

// reset forgets the last request so that its memory can be freed.
func (d *decoder) reset() {
	clear(d.params)
	clear(d.tensor)
	clear(d.raws)
	clear(d.contents)
	d.params, d.tensor, d.raws, d.contents, d.spans = d.params[:0], d.tensor[:0], d.raws[:0], d.contents[:0], d.spans[:0]
	if cap(d.head) > maxKeptScratch {
		d.head = nil
	}
	d.head = d.head[:0]
}

// request reads a message into c.Request. Strings are copied; d.raws and d.contents
// are views on b, which bind turns into tensors.
func (d *decoder) request(c *Call, b []byte) error {
	req := &c.Request
	req.Inputs, req.Outputs, c.uses = c.inputs[:0], c.outputs[:0], c.uses[:0]
	if d.find(c, b) {
		return nil
	}
	cur, f, seen := cursor{b}, field{}, layout{}
	for len(cur.b) > 0 {
		begin := len(b) - len(cur.b)
		if !cur.next(&f) {
			return errMalformed
		}
		d.tensor = d.tensor[:0]
		if f.typ == protowire.BytesType { // as every field of the message: others are unknown
			if err := d.field(c, &f); err != nil {
				return err
			}
		}
		seen.note(&f, begin, len(b)-len(cur.b), len(d.tensor) > 0)
	}
	var err error
	if c.emptyFinal, err = apply(req, d.params); err == nil {
		d.learn(c, b, seen)
	}
	return err
}

func (d *decoder) field(c *Call, f *field) (err error) {
	req, ok := &c.Request, true
	switch f.num {
	case 1:
		req.Model, ok = d.names.of(f.val)
	case 2:
		req.Version, ok = d.names.of(f.val)
	case 3:
		req.ID, ok = text(f.val)
	case 4:
		d.params, err = d.addParam(d.params, f.val)
	case 5:
		err = d.input(c, f.val)
	case 6:
		err = d.output(c, f.val)
	case 7:
		if len(d.raws) == maxInputs {
			return tooMany("raw_input_contents", maxInputs)
		}
		d.raws = append(d.raws, f.val)
	}
	if !ok {
		return errMalformed
	}
	return err
}

// input reads an InferInputTensor.
func (d *decoder) input(c *Call, b []byte) error {
	if len(c.Request.Inputs) == maxInputs {
		return tooMany("inputs", maxInputs)
	}
	var t infer.Tensor
	var data contents
	d.tensor = d.tensor[:0]
	first := len(c.shapes)
	cur, f := cursor{b}, field{}
	for len(cur.b) > 0 {
		if !cur.next(&f) {
			return errMalformed
		}
		var err error
		ok := true
		switch {
		case f.num == 3:
			c.shapes, err = appendShape(c.shapes, first, &f)
		case f.typ != protowire.BytesType:
		case f.num == 1:
			t.Name, ok = d.names.of(f.val)
		case f.num == 2:
			t.Datatype, ok = datatype(f.val)
		case f.num == 4:
			d.tensor, err = d.addParam(d.tensor, f.val)
		case f.num == 5:
			data.add(f.val)
		}
		if !ok {
			return errMalformed
		}
		if err != nil {
			return err
		}
	}
	t.Shape = c.shapes[first:len(c.shapes):len(c.shapes)]
	use, shared, err := sharedOf(t.Name, d.tensor)
	if err != nil {
		return err
	}
	if data.shared = shared; shared {
		use.Index = len(c.Request.Inputs)
		c.uses = append(c.uses, use)
	}
	c.Request.Inputs = append(c.Request.Inputs, t)
	d.contents = append(d.contents, data)
	return nil
}

// add merges another occurrence of the field: the encodings, one behind the other. There may
// be as many as bytes, so what was put together is not copied for each.
func (c *contents) add(b []byte) {
	if c.set && len(c.data) > 0 {
		if !c.own {
			c.data, c.own = append(make([]byte, 0, 2*(len(c.data)+len(b))), c.data...), true
		}
		b = append(c.data, b...)
	}
	c.data, c.set = b, true
}

// datatype reads a datatype's name; an unknown one is Invalid, which validation
// refuses, bytes that are no text are malformed.
func datatype(b []byte) (infer.Datatype, bool) {
	if dt := infer.ParseDatatype(b); dt != infer.Invalid {
		return dt, true
	}
	_, ok := text(b)
	return infer.Invalid, ok
}

// appendShape reads dimensions, packed or not, of the shape that starts at first.
func appendShape(dims []int64, first int, f *field) ([]int64, error) {
	add := func(v uint64) error {
		if len(dims)-first == infer.MaxRank {
			return infer.Errorf(infer.InvalidArg, "shape has more than %d dimensions", infer.MaxRank)
		}
		dims = append(dims, int64(v))
		return nil
	}
	switch f.typ {
	case protowire.VarintType:
		return dims, add(f.bits)
	case protowire.BytesType:
		for b := f.val; len(b) > 0; {
			v, n := varint(b)
			if n <= 0 {
				return dims, errMalformed
			}
			if err := add(v); err != nil {
				return dims, err
			}
			b = b[n:]
		}
	}
	return dims, nil
}

// output reads an InferRequestedOutputTensor.
func (d *decoder) output(c *Call, b []byte) error {
	if len(c.Request.Outputs) == maxOutputs {
		return tooMany("outputs", maxOutputs)
	}
	var out infer.RequestedOutput
	d.tensor = d.tensor[:0]
	cur, f := cursor{b}, field{}
	for len(cur.b) > 0 {
		if !cur.next(&f) {
			return errMalformed
		}
		switch {
		case f.isBytes(1):
			name, ok := d.names.of(f.val)
			if !ok {
				return errMalformed
			}
			out.Name = name
		case f.isBytes(2):
			var err error
			if d.tensor, err = d.addParam(d.tensor, f.val); err != nil {
				return err
			}
		}
	}
	return c.addOutput(out, d.tensor)
}

// bind gives every input its data: a view on its raw contents, or its typed contents
// written out as bytes to memory of bodies, which then becomes the request's memory.
// The texts, and that raw contents beyond the inputs are passed over, are the
// original's.
func (d *decoder) bind(c *Call, bodies Bodies) error {
	req := &c.Request
	total, typed, raws := int64(0), false, d.raws
	for i := range req.Inputs {
		t, data := &req.Inputs[i], &d.contents[i]
		switch {
		case data.shared && data.set:
			return infer.Errorf(infer.InvalidArg,
				"unexpected 'content' provided when using shared memory for input tensor '%s' for model '%s'", t.Name, req.Model)
		case data.shared:
		case data.set && len(d.raws) > 0:
			return infer.Errorf(infer.InvalidArg,
				"contents field must not be specified when using raw_input_contents for '%s' for model '%s'", t.Name, req.Model)
		case data.set:
			n, err := measure(req.Model, t, data.data)
			if err != nil {
				return err
			}
			total, typed = total+alignUp(n), true
		case len(raws) > 0:
			t.Data, raws = raws[0], raws[1:]
		default:
			return infer.Errorf(infer.InvalidArg, "unable to find data for input tensor '%s' for model '%s' in request.", t.Name, req.Model)
		}
	}
	if !typed || total == 0 {
		return nil
	}
	body, err := bodies.Body(total)
	if err != nil {
		return err
	}
	old := req.Memory
	req.Memory = body
	defer old.Release()
	rest := body.Data
	for i := range req.Inputs {
		t, data := &req.Inputs[i], d.contents[i].data
		if d.contents[i].shared {
			continue
		}
		n, err := measure(req.Model, t, data)
		if err != nil {
			return err
		}
		t.Data = rest[:n:n]
		rest = rest[alignUp(n):]
		if err := fill(t.Data, t, data); err != nil {
			return err
		}
	}
	return nil
}
