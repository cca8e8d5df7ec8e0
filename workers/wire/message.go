package wire

import (
	"math"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// BatchMessage is the message of b, which shares b's names, shapes and parameters. Data stands
// beside it, one tensor for each segment that lies in no region.
func BatchMessage(b *Batch, handle uint64, instance uint32) *worker.Batch {
	m := &worker.Batch{Id: b.ID, Handle: handle, Instance: instance, Rows: uint32(b.Rows),
		Requests: make([]*worker.Request, len(b.Requests)), Inputs: make([]*worker.Input, len(b.Inputs))}
	for i := range b.Requests {
		m.Requests[i] = requestMessage(&b.Requests[i])
	}
	for i := range b.Inputs {
		in := &b.Inputs[i]
		out := &worker.Input{Name: in.Name, DataType: datatypeNumber(in.Datatype), Shape: in.Shape, Layout: layouts[in.Layout]}
		if in.Layout == infer.Ragged {
			for _, shape := range in.Extents {
				out.Extents = append(out.Extents, &worker.Extent{Shape: shape})
			}
		}
		for _, s := range in.Segments {
			out.Segments = append(out.Segments, &worker.Segment{ByteSize: s.Length, Region: rangeMessage(s)})
		}
		m.Inputs[i] = out
	}
	return m
}

func requestMessage(q *Request) *worker.Request {
	m := &worker.Request{Id: q.ID, Rows: uint32(q.Rows), Parameters: paramMessages(q.Params), SequenceId: q.Correlation.ID,
		SequenceName: q.Correlation.Str, SequenceStart: q.Start, SequenceEnd: q.End, TimeoutNs: q.Timeout}
	for i, name := range q.Outputs {
		o := &worker.RequestedOutput{Name: name}
		if len(q.Places) > 0 && q.Places[i] == Resident {
			o.Resident = true
		} else if len(q.Places) > 0 {
			o.Region = rangeMessage(q.Places[i])
		}
		m.Outputs = append(m.Outputs, o)
	}
	return m
}

// rangeMessage is nil for a segment in no region.
func rangeMessage(s Segment) *worker.Range {
	slot, off, ok := s.Region()
	if !ok {
		return nil
	}
	return &worker.Range{Slot: slot, Offset: off, ByteSize: s.Length}
}

func paramMessages(params infer.Params) []*worker.Parameter {
	if len(params) == 0 {
		return nil
	}
	out := make([]*worker.Parameter, len(params))
	for i := range params {
		v, m := &params[i].Value, &worker.Parameter{Name: params[i].Name}
		switch v.Kind {
		case infer.KindBool:
			m.Value = &worker.Parameter_BoolValue{BoolValue: v.Bool}
		case infer.KindInt64:
			m.Value = &worker.Parameter_Int64Value{Int64Value: v.Int}
		case infer.KindUint64:
			m.Value = &worker.Parameter_Uint64Value{Uint64Value: uint64(v.Int)}
		case infer.KindDouble:
			m.Value = &worker.Parameter_DoubleValue{DoubleValue: v.Double}
		case infer.KindString:
			m.Value = &worker.Parameter_StringValue{StringValue: v.Str}
		}
		out[i] = m
	}
	return out
}

// ReadBatch fills b from a message and the tensors that came with it; it checks what
// DecodeBatch does. The result is tensors with one entry for each segment: those in regions
// have none. What b points to is the message's. An error is Internal.
func ReadBatch(m *worker.Batch, tensors [][]byte, b *Batch) ([][]byte, error) {
	r := messageReader{tensors: tensors}
	*b = Batch{ID: m.GetId(), Rows: r.rows(m.GetRows())}
	if m.GetId() == 0 {
		r.fail("a batch without id")
	}
	b.Requests = make([]Request, len(m.GetRequests()))
	for i, q := range m.GetRequests() {
		b.Requests[i] = r.request(q)
		b.Requests[i].Cancel = uint32(i)
	}
	b.Inputs = make([]Input, len(m.GetInputs()))
	for i, in := range m.GetInputs() {
		b.Inputs[i] = r.input(in, len(b.Requests))
	}
	if len(r.tensors) > 0 {
		r.fail("%d tensors are left", len(r.tensors))
	}
	return r.taken, r.err
}

// messageReader takes the tensors of a message one after the other. The first fault stays in
// its err.
type messageReader struct {
	reader
	tensors [][]byte
	taken   [][]byte // one for each segment
	offset  int64    // of the next tensor, if they stood one behind the other
}

func (r *messageReader) rows(n uint32) int {
	if n > math.MaxInt32 {
		r.fail("%d rows", n)
		return 0
	}
	return int(n)
}

func (r *messageReader) request(m *worker.Request) Request {
	q := Request{ID: m.GetId(), Rows: r.rows(m.GetRows()), Params: r.params(m.GetParameters()),
		Correlation: infer.Correlation{ID: m.GetSequenceId(), Str: m.GetSequenceName()}, Start: m.GetSequenceStart(), End: m.GetSequenceEnd(),
		Timeout: m.GetTimeoutNs()}
	if q.Timeout < 0 {
		r.fail("a timeout is %d", q.Timeout)
	}
	for i, o := range m.GetOutputs() {
		q.Outputs = append(q.Outputs, o.GetName())
		to := Resident
		switch {
		case o.GetRegion() != nil && o.GetResident():
			r.fail("output '%s' goes to a region, and may be resident", o.GetName())
		case o.GetRegion() != nil:
			to = r.region(o.GetRegion())
		case !o.GetResident():
			continue
		}
		for len(q.Places) < i {
			q.Places = append(q.Places, Segment{})
		}
		q.Places = append(q.Places, to)
	}
	for len(q.Places) > 0 && len(q.Places) < len(q.Outputs) {
		q.Places = append(q.Places, Segment{})
	}
	return q
}

func (r *messageReader) params(ms []*worker.Parameter) infer.Params {
	var out infer.Params
	for _, m := range ms {
		p := infer.Param{Name: m.GetName()}
		switch v := m.GetValue().(type) {
		case *worker.Parameter_BoolValue:
			p.Value = infer.Value{Kind: infer.KindBool, Bool: v.BoolValue}
		case *worker.Parameter_Int64Value:
			p.Value = infer.Value{Kind: infer.KindInt64, Int: v.Int64Value}
		case *worker.Parameter_Uint64Value:
			p.Value = infer.Value{Kind: infer.KindUint64, Int: int64(v.Uint64Value)}
		case *worker.Parameter_DoubleValue:
			p.Value = infer.Value{Kind: infer.KindDouble, Double: v.DoubleValue}
		case *worker.Parameter_StringValue:
			p.Value = infer.Value{Kind: infer.KindString, Str: v.StringValue}
		default:
			r.fail("parameter '%s' has no value", m.GetName())
		}
		out = append(out, p)
	}
	return out
}

func (r *messageReader) input(m *worker.Input, requests int) Input {
	in := Input{Name: m.GetName(), Datatype: r.datatype(m.GetName(), m.GetDataType()), Shape: r.shape(m.GetName(), m.GetShape())}
	var ok bool
	if in.Layout, ok = layoutFrom(m.GetLayout()); !ok {
		r.fail("layout %d", m.GetLayout())
	}
	var size int64
	for _, s := range m.GetSegments() {
		segment := r.segment(s.GetRegion(), s.GetByteSize())
		in.Segments = append(in.Segments, segment)
		if segment.Length > math.MaxInt64-size {
			r.fail("segments of input '%s' overflow", in.Name)
			return in
		}
		size += segment.Length
	}
	r.checkSize(in.Name, in.Datatype, in.Shape, size)
	if in.Layout != infer.Ragged {
		return in
	}
	if len(m.GetExtents()) != requests {
		r.fail("input '%s' has %d extents of %d requests", in.Name, len(m.GetExtents()), requests)
		return in
	}
	for _, e := range m.GetExtents() {
		in.Extents = append(in.Extents, r.shape(in.Name, e.GetShape()))
	}
	r.checkExtents(&in)
	return in
}

// segment takes a tensor, or names a region.
func (r *messageReader) segment(region *worker.Range, size int64) Segment {
	if region != nil {
		r.taken = append(r.taken, nil)
		s := r.region(region)
		if s.Length != size && r.err == nil {
			r.fail("a segment of %d bytes is %d bytes of a region", size, s.Length)
		}
		return s
	}
	data := r.tensor()
	if int64(len(data)) != size {
		r.fail("a segment of %d bytes came with a tensor of %d", size, len(data))
		return Segment{}
	}
	s := Segment{Offset: r.offset, Length: size}
	r.offset += size
	return s
}

func (r *messageReader) tensor() []byte {
	if len(r.tensors) == 0 {
		r.fail("a tensor did not come with the message")
		return nil
	}
	data := r.tensors[0]
	r.tensors = r.tensors[1:]
	r.taken = append(r.taken, data)
	return data
}

// region reads a part of a client's memory, or of a resident output.
func (r *messageReader) region(m *worker.Range) Segment {
	const end = int64(1) << regionBits
	off, n := m.GetOffset(), m.GetByteSize()
	if m.GetSlot() == 0 || m.GetSlot() > LastResident || off < 0 || off >= end || n < 0 || n > end-off {
		r.fail("a segment of %d bytes at %d of region %d", n, off, m.GetSlot())
		return Segment{}
	}
	return InRegion(m.GetSlot(), off, n)
}

func (r *messageReader) datatype(tensor string, n modelconfig.DataType) infer.Datatype {
	d, ok := datatypeFrom(n)
	if !ok {
		r.fail("tensor '%s' has datatype %d", tensor, n)
	}
	return d
}

func (r *messageReader) shape(tensor string, shape []int64) []int64 {
	if len(shape) > infer.MaxRank {
		r.fail("tensor '%s' has %d dimensions", tensor, len(shape))
		return nil
	}
	for _, n := range shape {
		if n < 0 {
			r.fail("a dimension of tensor '%s' is %d", tensor, n)
			return nil
		}
	}
	return shape
}

// ResultMessage is the message of res, which shares res's names and shapes. Data stands beside
// it, one tensor for each output that lies in no region.
func ResultMessage(res *Result) *worker.Result {
	m := &worker.Result{Batch: res.ID, More: res.More, Free: res.Free, InputsRead: res.InputsRead,
		Error: errorMessage(res.Code, res.Reason, res.Err), Outputs: outputMessages(res.Outputs)}
	if res.Compute != (infer.ComputeTimes{}) {
		m.Compute = &worker.ComputeTimes{Input: res.Compute.Input, Infer: res.Compute.Infer, Output: res.Compute.Output}
	}
	for i := range res.Responses {
		p := &res.Responses[i]
		m.Responses = append(m.Responses, &worker.Response{Request: uint32(p.Index), Error: errorMessage(p.Code, p.Reason, p.Err),
			Final: p.Final, Repeat: p.Repeat, GoesOn: p.GoesOn, Parameters: paramMessages(p.Params), Outputs: outputMessages(p.Outputs)})
	}
	return m
}

// errorMessage is nil where there is no text, and so no error.
func errorMessage(c infer.Code, reason infer.Reason, text string) *worker.Error {
	if text == "" {
		return nil
	}
	return &worker.Error{Code: codeNumber(c), Reason: string(reason), Message: text}
}

func outputMessages(outputs []Output) []*worker.Output {
	if len(outputs) == 0 {
		return nil
	}
	ms := make([]*worker.Output, len(outputs))
	for i := range outputs {
		o := &outputs[i]
		ms[i] = &worker.Output{Name: o.Name, DataType: datatypeNumber(o.Datatype), Shape: o.Shape, Region: rangeMessage(o.Data)}
	}
	return ms
}

// ReadResult fills res from a message and the tensors that came with it; it checks what
// DecodeResult does. Segments count from the start of the first tensor. What res points to is
// the message's. An error is Internal.
func ReadResult(m *worker.Result, tensors [][]byte, res *Result) error {
	r := messageReader{tensors: tensors}
	*res = Result{ID: m.GetBatch(), More: m.GetMore(), Free: m.GetFree(), InputsRead: m.GetInputsRead(), Outputs: r.outputs(m.GetOutputs()),
		Responses: res.Responses[:0]}
	if res.Free && !res.More {
		r.fail("a result ends its batch, and says that its instance is free beside it")
	}
	if res.InputsRead && !res.More {
		r.fail("a result ends its batch, and says that its inputs are read beside it")
	}
	res.Code, res.Reason, res.Err = r.failure(m.GetError())
	res.Compute = infer.ComputeTimes{Input: m.GetCompute().GetInput(), Infer: m.GetCompute().GetInfer(), Output: m.GetCompute().GetOutput()}
	if c := &res.Compute; c.Input < 0 || c.Infer < 0 || c.Output < 0 {
		r.fail("a duration is negative: %+v", *c)
	}
	for _, p := range m.GetResponses() {
		one := Response{Index: int(p.GetRequest()), Final: p.GetFinal(), Repeat: p.GetRepeat(), GoesOn: p.GetGoesOn(), Params: r.params(p.GetParameters()),
			Outputs: r.outputs(p.GetOutputs())}
		one.Code, one.Reason, one.Err = r.failure(p.GetError())
		if !one.mayGoOn(res.More) {
			r.fail("%s", goesOnText)
		}
		res.Responses = append(res.Responses, one)
	}
	if len(r.tensors) > 0 {
		r.fail("%d tensors are left", len(r.tensors))
	}
	return r.err
}

func (r *messageReader) failure(m *worker.Error) (infer.Code, infer.Reason, string) {
	if m == nil {
		return 0, "", ""
	}
	c, ok := codeFrom(m.GetCode())
	if !ok || m.GetMessage() == "" {
		r.fail("an error of code %d and %d bytes of text", m.GetCode(), len(m.GetMessage()))
	}
	return c, infer.Reason(m.GetReason()), m.GetMessage()
}

func (r *messageReader) outputs(ms []*worker.Output) []Output {
	if len(ms) == 0 {
		return nil
	}
	out := make([]Output, len(ms))
	for i, m := range ms {
		o := Output{Name: m.GetName(), Datatype: r.datatype(m.GetName(), m.GetDataType()), Shape: r.shape(m.GetName(), m.GetShape())}
		if m.GetRegion() != nil {
			o.Data = r.region(m.GetRegion())
		} else {
			n := int64(len(r.tensor()))
			o.Data = Segment{Offset: r.offset, Length: n}
			r.offset += n
		}
		r.checkSize(o.Name, o.Datatype, o.Shape, o.Data.Length)
		out[i] = o
	}
	return out
}
