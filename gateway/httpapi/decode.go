package httpapi

import (
	"bytes"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// message is one request and what it is made of, allocated together. It is pooled only
// where the request was answered in full: after a failure a batch may still name it.
type message struct {
	req     infer.Request
	env     infer.Envelope
	end     infer.End
	inputs  [4]infer.Tensor
	outputs [4]infer.RequestedOutput
	params  [4]infer.Param
	dims    [16]int64
}

// span is a range of a buffer.
type span struct{ from, to int }

func (s span) of(all string) string { return all[s.from:s.to] }

// input is one input while the document is read.
type input struct {
	name     span // of form.text
	dims     span // of form.dims
	datatype infer.Datatype
	data     span  // of form.scratch; data from JSON
	size     int64 // bytes of binary data
	offset   int64 // where the data lies in the request's memory, once it is arranged
	place    place // fromShared
	source   source
	faults   [numSlots]error
}

// source says where an input's data comes from; more than one is a fault.
type source uint8

const (
	fromJSON source = 1 << iota
	fromBinary
	fromShared
)

// slots order an input's faults as the original looks for them.
const (
	slotName = iota
	slotDatatype
	slotShape
	slotSource
	slotData
	numSlots
)

// output is one requested output while the document is read.
type output struct {
	name           span
	classification int64
	binary         bool
	binarySet      bool
	place          place
	params         span // of form.outParams
}

// param is one parameter while the document is read.
type param struct {
	name  span
	value infer.Value
	str   span
}

// form is what the JSON part of a request says. It depends on its bytes alone.
type form struct {
	text    []byte // names, ids, string values, one behind the other
	scratch []byte // tensor data from JSON
	dims    []int64
	inputs  []input
	outputs []output

	params, outParams []param // the request's, the outputs'

	id           span
	sequence     span
	sequenceID   uint64
	priority     uint64
	timeout      uint64
	start, end   bool
	binaryOutput bool
	total        int64 // bytes of all inputs as they are arranged
}

// decoder reads the JSON part of a request. It is used again; the strings and shapes of
// a request are copied out once, at the end.
type decoder struct {
	form
	s     json.Scanner
	names names
	seen  member
	fault error // the first value with no meaning
}

// member marks the members of an object that were seen: the first one counts, as in
// the original.
type member uint16

func (m *member) first(bit member) bool {
	was := *m&bit != 0
	*m |= bit
	return !was
}

func (d *decoder) reset() {
	d.form = form{text: d.text[:0], scratch: d.scratch[:0], dims: d.dims[:0], inputs: d.inputs[:0],
		outputs: d.outputs[:0], params: d.params[:0], outParams: d.outParams[:0]}
	d.names.reset()
	d.seen, d.fault = 0, nil
	if cap(d.scratch) > keepBuffer {
		d.scratch = nil
	}
	if cap(d.text) > keepBuffer {
		d.text = nil
	}
}

// fail keeps the first fault of meaning: the document is read to its end first, since
// one that is no JSON is told so. What may come once for each few bytes of a body is not
// worth an error where there is one.
func (d *decoder) fail(err error) {
	if d.fault == nil {
		d.fault = err
	}
}

// meaning splits an error: faults of syntax end the reading, others are kept.
func (d *decoder) meaning(err error, field string) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*json.Error); ok && !e.Syntax {
		if d.fault == nil {
			d.fail(jsonFault(err, field))
		}
		return nil
	}
	return err
}

const (
	memberID member = 1 << iota
	memberInputs
	memberOutputs
	memberParameters
)

// document reads the whole document.
func (d *decoder) document(data []byte) error {
	d.s.Reset(data)
	err := d.s.Empty()
	if err == nil {
		if d.s.Kind() == json.Object {
			err = d.top()
		} else {
			err = d.s.Skip()
		}
	}
	if err == nil {
		err = d.s.End()
	}
	if err != nil {
		return jsonFault(err, "")
	}
	if d.fault == nil && d.seen&memberInputs == 0 {
		d.fail(absent("inputs"))
	}
	return d.fault
}

func absent(field string) error {
	return infer.CallerErrorf("Unable to parse '%s': attempt to access non-existing object member '%s'", field, field)
}

func (d *decoder) top() error {
	if err := d.s.Open(); err != nil {
		return err
	}
	for {
		key, ok, err := d.s.Key()
		if err != nil || !ok {
			return err
		}
		switch string(key) {
		case "id":
			err = d.once(memberID, d.readID)
		case "inputs":
			err = d.once(memberInputs, d.readInputs)
		case "outputs":
			err = d.once(memberOutputs, d.readOutputs)
		case "parameters":
			err = d.once(memberParameters, d.readParameters)
		default:
			err = d.s.Skip()
		}
		if err != nil {
			return err
		}
	}
}

func (d *decoder) once(m member, read func() error) error {
	if !d.seen.first(m) {
		return d.s.Skip()
	}
	return read()
}

// str reads a string into text; false where the value is none, which is a fault named
// after field.
func (d *decoder) str(field string) (span, error, bool) {
	if d.s.Kind() != json.String {
		err := d.s.Skip()
		if err == nil {
			d.fail(infer.CallerErrorf("Unable to parse '%s': %s", field, json.NotString))
		}
		return span{}, err, false
	}
	from := len(d.text)
	text, err := d.s.AppendStr(d.text)
	d.text = text
	return span{from, len(text)}, err, err == nil
}

func (d *decoder) boolean(field string) (bool, error) {
	if d.s.Kind() != json.Bool {
		err := d.s.Skip()
		if err == nil {
			d.fail(infer.CallerErrorf("Unable to parse '%s': %s", field, json.NotBool))
		}
		return false, err
	}
	return d.s.Bool()
}

func (d *decoder) uint(field string) (uint64, error) {
	v, err := d.s.Uint()
	return v, d.meaning(err, field)
}

func (d *decoder) readID() error {
	id, err, _ := d.str("id")
	d.id = id
	return err
}

// array enters an array; false where the value is none, which is a fault.
func (d *decoder) array(field string) (bool, error) {
	if d.s.Kind() == json.Array {
		return true, d.s.Open()
	}
	err := d.s.Skip()
	if err == nil {
		d.fail(infer.CallerErrorf("Unable to parse '%s': %s", field, json.NotArray))
	}
	return false, err
}

func (d *decoder) readParameters() error {
	if d.s.Kind() != json.Object {
		if err := d.s.Skip(); err != nil {
			return err
		}
		d.fail(infer.CallerErrorf("failed to get request params.: attempt to get members for non-object"))
		return nil
	}
	if err := d.s.Open(); err != nil {
		return err
	}
	var seen member
	for {
		key, ok, err := d.s.Key()
		if err != nil || !ok {
			return err
		}
		if err := d.parameter(key, &seen); err != nil {
			return err
		}
	}
}

func (d *decoder) parameter(key []byte, seen *member) (err error) {
	reserved := func(bit member) bool {
		if seen.first(bit) {
			return true
		}
		err = d.s.Skip()
		return false
	}
	switch string(key) {
	case "priority":
		if reserved(1) {
			d.priority, err = d.uint("priority")
		}
	case "timeout":
		if reserved(2) {
			d.timeout, err = d.uint("timeout")
		}
	case "sequence_id":
		if reserved(4) {
			err = d.readSequence()
		}
	case "sequence_start":
		if reserved(8) {
			d.start, err = d.boolean("sequence_start")
		}
	case "sequence_end":
		if reserved(16) {
			d.end, err = d.boolean("sequence_end")
		}
	case "binary_data_output":
		if reserved(32) {
			d.binaryOutput, err = d.boolean("binary_data_output")
		}
	default:
		if bytes.HasPrefix(key, []byte("triton_")) {
			if d.fault != nil {
				return d.s.Skip()
			}
			d.fail(infer.Errorf(infer.InvalidArg,
				"parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."))
			return d.s.Skip()
		}
		d.params, err = d.custom(d.params, 0, false, key)
	}
	return err
}

// maxSequenceID is the longest string for a sequence. Source: the original 2.51.
const maxSequenceID = 128

func (d *decoder) readSequence() error {
	if d.s.Kind() == json.Number {
		v, err := d.s.Uint()
		if e, ok := err.(*json.Error); ok && !e.Syntax {
			d.fail(infer.CallerErrorf("Unable to parse 'sequence_id': %s", json.NotString))
			return nil
		}
		d.sequenceID = v
		return err
	}
	id, err, ok := d.str("sequence_id")
	if ok && id.to-id.from > maxSequenceID {
		d.fail(infer.Errorf(infer.Unsupported, "string correlation ID cannot be longer than %d characters", maxSequenceID))
	}
	d.sequence = id
	return err
}

// maxParams bounds the parameters of one request.
const maxParams = 1024

// custom reads a parameter that is the model's business behind those in list; of one
// name among those from from on, the first counts. output is that list is the outputs'.
func (d *decoder) custom(list []param, from int, output bool, key []byte) ([]param, error) {
	if d.names.has(list, from, output, d.text, key) {
		return list, d.s.Skip()
	}
	if len(list) >= maxParams {
		if d.fault == nil {
			d.fail(infer.Errorf(infer.InvalidArg, "the request has more than %d parameters", maxParams))
		}
		return list, d.s.Skip()
	}
	p := param{name: span{len(d.text), len(d.text) + len(key)}}
	d.text = append(d.text, key...)
	ok, err := d.value(&p)
	if err != nil {
		return list, err
	}
	if !ok && d.fault != nil {
		return list, nil
	}
	if !ok {
		d.fail(infer.Errorf(infer.InvalidArg, "parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.",
			key))
		return list, nil
	}
	return append(list, p), nil
}

// value reads a parameter's value; false where it is no scalar.
func (d *decoder) value(p *param) (bool, error) {
	switch d.s.Kind() {
	case json.Bool:
		v, err := d.s.Bool()
		p.value = infer.Value{Kind: infer.KindBool, Bool: v}
		return true, err
	case json.String:
		p.value.Kind = infer.KindString
		str, err, _ := d.str("")
		p.str = str
		return true, err
	case json.Number:
		n, err := d.s.Num()
		switch {
		case n.IsInt:
			p.value = infer.Value{Kind: infer.KindInt64, Int: n.Int}
		case n.IsUint:
			p.value = infer.Value{Kind: infer.KindUint64, Int: int64(n.Uint)}
		default:
			p.value = infer.Value{Kind: infer.KindDouble, Double: n.Double}
		}
		return true, err
	}
	return false, d.s.Skip()
}

// fill copies what was read into a request, whose strings are parts of all, the text; the
// tensors' Data comes later.
func (d *form) fill(m *message, all string) {
	dims := m.dims[:0]
	if len(d.dims) > len(m.dims) {
		dims = make([]int64, 0, len(d.dims))
	}
	dims = append(dims, d.dims...)
	r := &m.req
	r.ID = d.id.of(all)
	r.Correlation = infer.Correlation{ID: d.sequenceID, Str: d.sequence.of(all)}
	r.SequenceStart, r.SequenceEnd = d.start, d.end
	r.Priority, r.Timeout = d.priority, microseconds(d.timeout)

	r.Inputs = m.inputs[:0]
	for i := range d.inputs {
		in := &d.inputs[i]
		r.Inputs = append(r.Inputs, infer.Tensor{Name: in.name.of(all), Datatype: in.datatype,
			Shape: dims[in.dims.from:in.dims.to:in.dims.to]})
	}
	r.Outputs = m.outputs[:0]
	for i := range d.outputs {
		o := &d.outputs[i]
		out := infer.RequestedOutput{Name: o.name.of(all), Classification: o.classification}
		for _, p := range d.outParams[o.params.from:o.params.to] {
			out.Params = append(out.Params, p.of(all))
		}
		r.Outputs = append(r.Outputs, out)
	}
	r.Params = m.params[:0]
	for _, p := range d.params {
		r.Params = append(r.Params, p.of(all))
	}
}

func (p *param) of(all string) infer.Param {
	v := p.value
	if v.Kind == infer.KindString {
		v.Str = p.str.of(all)
	}
	return infer.Param{Name: p.name.of(all), Value: v}
}

// microseconds is a timeout as a duration; what is longer than a duration can say is
// the longest one.
func microseconds(us uint64) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Microsecond)
	if us > most {
		return 1<<63 - 1
	}
	return time.Duration(us) * time.Microsecond
}
