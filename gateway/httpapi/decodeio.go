package httpapi

import (
	"math"
	"strings"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// maxTensors bounds the inputs, and the requested outputs, of one request.
const maxTensors = 4096

const (
	memberName member = 1 << iota
	memberShape
	memberDatatype
	memberData
	memberParams
	memberBinary
	memberClass
	memberRegion
	memberRegionSize
	memberRegionOffset
)

func (d *decoder) readInputs() error {
	ok, err := d.array("inputs")
	for ok && err == nil {
		if ok, err = d.s.Next(); !ok || err != nil {
			return err
		}
		if len(d.inputs) >= maxTensors {
			if d.fault == nil {
				d.fail(infer.Errorf(infer.InvalidArg, "the request has more than %d inputs", maxTensors))
			}
			err = d.s.Skip()
			continue
		}
		d.inputs = append(d.inputs, input{})
		err = d.readInput(&d.inputs[len(d.inputs)-1])
	}
	return err
}

// inputReader reads one input object; data that stands before its datatype or shape is
// gone back to.
type inputReader struct {
	*decoder
	in   *input
	seen member
	late json.Mark // where data stands that was skipped
	skip bool
}

// readInput reads one input and keeps the fault that the original would name.
func (d *decoder) readInput(in *input) error {
	r := inputReader{decoder: d, in: in}
	before := d.fault
	if d.s.Kind() == json.Object {
		if err := r.object(); err != nil {
			return err
		}
	} else if err := d.s.Skip(); err != nil {
		return err
	}
	d.fault = before
	r.check()
	for _, fault := range in.faults {
		if fault != nil {
			d.fail(fault)
			return nil
		}
	}
	if r.skip {
		end := d.s.Mark()
		d.s.Seek(r.late)
		if err := r.data(); err != nil {
			return err
		}
		d.s.Seek(end)
		if fault := in.faults[slotData]; fault != nil {
			d.fail(fault)
		}
	}
	return nil
}

func (r *inputReader) object() error {
	if err := r.s.Open(); err != nil {
		return err
	}
	for {
		key, ok, err := r.s.Key()
		if err != nil || !ok {
			return err
		}
		r.fault = nil
		slot := slotName
		switch string(key) {
		case "name":
			err = r.member(memberName, r.name)
		case "shape":
			slot, err = slotShape, r.member(memberShape, r.shape)
		case "datatype":
			slot, err = slotDatatype, r.member(memberDatatype, r.datatype)
		case "data":
			slot, err = slotData, r.member(memberData, r.data)
		case "parameters":
			slot, err = slotSource, r.member(memberParams, r.parameters)
		default:
			err = r.s.Skip()
		}
		if err != nil {
			return err
		}
		if r.in.faults[slot] == nil {
			r.in.faults[slot] = r.fault
		}
	}
}

func (r *inputReader) member(m member, read func() error) error {
	if !r.seen.first(m) {
		return r.s.Skip()
	}
	return read()
}

func (r *inputReader) name() (err error) {
	r.in.name, err, _ = r.str("name")
	return err
}

func (r *inputReader) datatype() error {
	name, err, ok := r.str("datatype")
	if ok {
		r.in.datatype = infer.ParseDatatype(r.text[name.from:name.to])
		r.text = r.text[:name.from]
	}
	return err
}

func (r *inputReader) shape() error {
	from := len(r.dims)
	ok, err := r.array("shape")
	for ok && err == nil {
		if ok, err = r.s.Next(); !ok || err != nil {
			break
		}
		var v uint64
		if v, err = r.uint("shape"); err != nil {
			return err
		}
		if r.fault != nil {
			continue // one is told
		}
		if v > math.MaxInt64 {
			r.fail(infer.Errorf(infer.InvalidArg, "Unable to parse 'shape': dimension %d is out of range", v))
		}
		if len(r.dims)-from == infer.MaxRank {
			r.fail(infer.Errorf(infer.InvalidArg, "Unable to parse 'shape': more than %d dimensions", infer.MaxRank))
			continue
		}
		r.dims = append(r.dims, int64(v))
	}
	r.in.dims = span{from, len(r.dims)}
	return err
}

// data reads tensor data, or skips it where datatype or shape are not known yet.
func (r *inputReader) data() error {
	in := r.in
	in.source |= fromJSON
	if r.seen&(memberShape|memberDatatype) != memberShape|memberDatatype || in.faults[slotShape] != nil {
		r.skip, r.late = true, r.s.Mark()
		return r.s.Skip()
	}
	if in.datatype == infer.Invalid || in.datatype == infer.FP16 || in.datatype == infer.BF16 {
		return r.s.Skip() // check says why
	}
	want, err := infer.Elements(r.dims[in.dims.from:in.dims.to])
	if err != nil {
		in.faults[slotData] = err
		return r.s.Skip()
	}
	limit := want
	shapeless := in.dims.from == in.dims.to // no model takes that, and says so itself
	if in.datatype == infer.Bytes || shapeless {
		limit = math.MaxInt64
	}
	from := len(r.scratch)
	scratch, n, err := r.s.AppendTensor(r.scratch, in.datatype, limit)
	r.scratch = scratch
	in.data = span{from, len(scratch)}
	if err != nil {
		if e, ok := err.(*json.Error); ok && !e.Syntax {
			in.faults[slotData] = r.dataFault(e)
			return nil
		}
		return err
	}
	if n != want && in.datatype != infer.Bytes && !shapeless {
		in.faults[slotData] = infer.CallerErrorf("Unable to parse 'data': Shape does not match true shape of 'data' field")
	}
	return nil
}

func (r *inputReader) dataFault(e *json.Error) error {
	switch {
	case strings.HasPrefix(e.Text, json.OutOfRange):
		return infer.Errorf(infer.InvalidArg, "Unable to parse 'data': %w", e)
	case e.Text == json.NotString && r.in.datatype == infer.Bytes:
		return infer.CallerErrorf("Unable to parse JSON bytes array: %w", e)
	}
	return jsonFault(e, "data")
}

// parameters reads an input's parameters; others than ours are ignored, as is a value
// that is no object.
func (r *inputReader) parameters() error {
	if r.s.Kind() != json.Object {
		return r.s.Skip()
	}
	if err := r.s.Open(); err != nil {
		return err
	}
	for {
		key, ok, err := r.s.Key()
		if err != nil || !ok {
			return err
		}
		switch string(key) {
		case "binary_data_size":
			err = r.member(memberBinary, r.binarySize)
		case "shared_memory_region":
			r.in.source |= fromShared
			err = r.member(memberRegion, r.in.place.regionOf(r.decoder))
		case "shared_memory_byte_size":
			err = r.member(memberRegionSize, r.in.place.sizeOf(r.decoder))
		case "shared_memory_offset":
			err = r.member(memberRegionOffset, r.in.place.offsetOf(r.decoder))
		default:
			err = r.s.Skip()
		}
		if err != nil {
			return err
		}
	}
}

func (r *inputReader) binarySize() error {
	r.in.source |= fromBinary
	v, err := r.uint("binary_data_size")
	if v > math.MaxInt64 {
		r.fail(infer.Errorf(infer.InvalidArg, "Unable to parse 'binary_data_size': %d is out of range", v))
		v = 0
	}
	r.in.size = int64(v)
	return err
}

// check finds what is missing or too much once the object was read.
func (r *inputReader) check() {
	in := r.in
	set := func(slot int, err error) {
		if in.faults[slot] == nil {
			in.faults[slot] = err
		}
	}
	switch in.source {
	case fromJSON, fromBinary, fromShared:
	default:
		in.faults[slotName] = sourceFault(in.source) // comes first
		return
	}
	if r.seen&memberName == 0 {
		set(slotName, absent("name"))
	}
	if r.seen&memberShape == 0 {
		set(slotShape, absent("shape"))
	}
	name := r.text[in.name.from:in.name.to]
	switch {
	case r.seen&memberDatatype == 0:
		set(slotDatatype, absent("datatype"))
	case in.datatype == infer.Invalid:
		set(slotDatatype, infer.Errorf(infer.InvalidArg, "invalid datatype for input %s", name))
	case in.source == fromJSON && (in.datatype == infer.FP16 || in.datatype == infer.BF16):
		set(slotData, infer.Errorf(infer.InvalidArg,
			"receiving %s data via JSON is not supported. Please use the binary data format for input %s", in.datatype, name))
	}
}

func sourceFault(s source) error {
	const text = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', " +
		"'shared_memory_region' in 'parameters'. But "
	if s == 0 {
		return infer.Errorf(infer.InvalidArg, text+"no field is set")
	}
	set := "set"
	if s&fromJSON != 0 {
		set += " 'data'"
	}
	if s&fromBinary != 0 {
		set += " 'binary_data_size'"
	}
	if s&fromShared != 0 {
		set += " 'shared_memory_region'"
	}
	return infer.Errorf(infer.InvalidArg, text+"%s", set)
}
