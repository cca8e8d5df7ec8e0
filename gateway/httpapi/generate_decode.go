package httpapi

import (
	"errors"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// modelInputs are a model's inputs as its metadata has them.
type modelInputs []*inference.ModelMetadataResponse_TensorMetadata

func (m modelInputs) find(name []byte) *inference.ModelMetadataResponse_TensorMetadata {
	for _, in := range m {
		if in.Name == string(name) {
			return in
		}
	}
	return nil
}

// generation reads the flat document of a generate call: members with the names of the
// model's inputs are tensors, all others, and those of the member parameters, are
// parameters. Nothing is reserved but id and parameters.
// Source: reference A6; texts and codes are those of the original 2.51.
func (d *decoder) generation(data []byte, inputs modelInputs) error {
	d.s.Reset(data)
	err := d.s.Empty()
	if err == nil {
		if d.s.Kind() == json.Object {
			err = d.flat(inputs)
		} else if err = d.s.Skip(); err == nil {
			d.fail(infer.CallerErrorf("attempt to get members for non-object"))
		}
	}
	if err == nil {
		err = d.s.End()
	}
	if err != nil {
		return jsonFault(err, "")
	}
	return d.fault
}

func (d *decoder) flat(inputs modelInputs) error {
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
		case "parameters":
			err = d.once(memberParameters, func() error { return d.nested(inputs) })
		default:
			err = d.mapped(key, inputs)
		}
		if err != nil {
			return err
		}
	}
}

// nested reads the member parameters, which may hold inputs too.
func (d *decoder) nested(inputs modelInputs) error {
	if d.s.Kind() != json.Object {
		if err := d.s.Skip(); err != nil {
			return err
		}
		d.fail(infer.CallerErrorf("Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"))
		return nil
	}
	if err := d.s.Open(); err != nil {
		return err
	}
	before := d.fault
	d.fault = nil
	for {
		key, ok, err := d.s.Key()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if err := d.mapped(key, inputs); err != nil {
			return err
		}
	}
	if d.fault != nil {
		d.fault = infer.Errorf(infer.CodeOf(d.fault), "Converting keyword: 'parameters': %w", d.fault)
	}
	if before != nil {
		d.fault = before
	}
	return nil
}

// mapped reads a member that is an input or a parameter.
func (d *decoder) mapped(key []byte, inputs modelInputs) (err error) {
	if in := inputs.find(key); in != nil {
		return d.mappedInput(in)
	}
	d.params, err = d.custom(d.params, 0, false, key)
	return err
}

// mappedInput reads the tensor of an input from an array, or from its only element.
func (d *decoder) mappedInput(meta *inference.ModelMetadataResponse_TensorMetadata) error {
	for i := range d.inputs {
		if d.inputs[i].name.equals(d.text, meta.Name) {
			if d.fault == nil { // for each time, an id that may be long would be copied
				req := infer.Request{ID: string(d.text[d.id.from:d.id.to])}
				d.fail(infer.Errorf(infer.InvalidArg, "%sinput '%s' already exists in request", req.Prefix(), meta.Name))
			}
			return d.s.Skip()
		}
	}
	in := input{datatype: infer.ParseDatatype(meta.Datatype), source: fromJSON, name: span{len(d.text), len(d.text) + len(meta.Name)}}
	d.text = append(d.text, meta.Name...)
	count, err := d.elements()
	if err != nil {
		return err
	}
	in.dims.from = len(d.dims)
	dims, ok := fit(d.dims, meta.Shape, count)
	d.dims, in.dims.to = dims, len(dims)
	switch {
	case d.fault != nil:
		return d.s.Skip() // one is told
	case !ok:
		d.fail(infer.Errorf(infer.InvalidArg, "The schema can not convert input '%s' to tensor with proper shape", meta.Name))
		return d.s.Skip()
	case in.datatype == infer.FP16 || in.datatype == infer.BF16:
		d.fail(infer.Errorf(infer.InvalidArg,
			"receiving %s data via JSON is not supported. Please use the binary data format for input %s", in.datatype, meta.Name))
		return d.s.Skip()
	}
	return d.mappedData(&in, count)
}

func (d *decoder) mappedData(in *input, count int64) error {
	from := len(d.scratch)
	var scratch []byte
	var err error
	n := count
	if d.s.Kind() == json.Array {
		scratch, n, err = d.s.AppendTensor(d.scratch, in.datatype, count)
	} else {
		scratch, err = d.s.AppendElement(d.scratch, in.datatype)
	}
	d.scratch, in.data = scratch, span{from, len(scratch)}
	var e *json.Error
	switch {
	case errors.As(err, &e) && !e.Syntax:
		r := inputReader{decoder: d, in: in}
		d.fail(r.dataFault(e))
	case err != nil:
		return err
	case n != count:
		d.fail(infer.CallerErrorf("Unable to parse 'data': Shape does not match true shape of 'data' field"))
	}
	d.inputs = append(d.inputs, *in)
	return nil
}

// elements counts those of the array that comes, whatever they are; 1 where none does.
// Nothing is used up.
func (d *decoder) elements() (int64, error) {
	if d.s.Kind() != json.Array {
		return 1, nil
	}
	at := d.s.Mark()
	defer d.s.Seek(at)
	if err := d.s.Open(); err != nil {
		return 0, err
	}
	for n := int64(0); ; n++ {
		ok, err := d.s.Next()
		if err != nil || !ok {
			return n, err
		}
		if err := d.s.Skip(); err != nil {
			return n, err
		}
	}
}

// equals compares a range of text.
func (s span) equals(text []byte, other string) bool { return string(text[s.from:s.to]) == other }
