package httpapi

import (
	"math"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

func (d *decoder) readOutputs() error {
	ok, err := d.array("outputs")
	for ok && err == nil {
		if ok, err = d.s.Next(); !ok || err != nil {
			return err
		}
		if len(d.outputs) >= maxTensors {
			if d.fault == nil {
				d.fail(infer.Errorf(infer.InvalidArg, "the request has more than %d outputs", maxTensors))
			}
			err = d.s.Skip()
			continue
		}
		d.outputs = append(d.outputs, output{})
		err = d.readOutput(&d.outputs[len(d.outputs)-1])
	}
	return err
}

func (d *decoder) readOutput(o *output) error {
	if d.s.Kind() != json.Object {
		if err := d.s.Skip(); err != nil {
			return err
		}
		d.fail(absent("name"))
		return nil
	}
	if err := d.s.Open(); err != nil {
		return err
	}
	from := len(d.outParams)
	var seen member
	for {
		key, ok, err := d.s.Key()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch {
		case string(key) == "name" && seen.first(memberName):
			o.name, err, _ = d.str("name")
		case string(key) == "parameters" && seen.first(memberParams):
			err = d.outputParameters(o)
		default:
			err = d.s.Skip()
		}
		if err != nil {
			return err
		}
	}
	o.params = span{from, len(d.outParams)}
	if seen&memberName == 0 {
		d.fail(absent("name"))
	}
	if o.place.named {
		if err := sharedOutputFault(o); err != nil {
			d.fail(err)
		}
	}
	return nil
}

func (d *decoder) outputParameters(o *output) error {
	if d.s.Kind() != json.Object {
		return d.s.Skip()
	}
	if err := d.s.Open(); err != nil {
		return err
	}
	from := len(d.outParams)
	var seen member
	for {
		key, ok, err := d.s.Key()
		if err != nil || !ok {
			return err
		}
		switch string(key) {
		case "classification":
			err = d.onceIn(&seen, memberClass, o, d.classification)
		case "binary_data":
			err = d.onceIn(&seen, memberBinary, o, d.binaryData)
		case "shared_memory_region":
			err = d.onceIn(&seen, memberRegion, o, func(o *output) error { return o.place.regionOf(d)() })
		case "shared_memory_byte_size":
			err = d.onceIn(&seen, memberRegionSize, o, func(o *output) error { return o.place.sizeOf(d)() })
		case "shared_memory_offset":
			err = d.onceIn(&seen, memberRegionOffset, o, func(o *output) error { return o.place.offsetOf(d)() })
		default:
			err = d.outputParameter(from, key)
		}
		if err != nil {
			return err
		}
	}
}

func (d *decoder) onceIn(seen *member, m member, o *output, read func(*output) error) error {
	if !seen.first(m) {
		return d.s.Skip()
	}
	return read(o)
}

// outputParameter keeps a scalar; the original ignores all others and so do we.
func (d *decoder) outputParameter(from int, key []byte) (err error) {
	switch d.s.Kind() {
	case json.Bool, json.Number, json.String:
		d.outParams, err = d.custom(d.outParams, from, true, key)
		return err
	}
	return d.s.Skip()
}

func (d *decoder) classification(o *output) error {
	v, err := d.s.Uint()
	if e, ok := err.(*json.Error); ok && !e.Syntax {
		d.fail(infer.CallerErrorf("Unable to set 'classification': %w", e))
		return nil
	}
	o.classification = int64(min(v, math.MaxInt64))
	return err
}

func (d *decoder) binaryData(o *output) (err error) {
	o.binary, err = d.boolean("binary_data")
	o.binarySet = true
	return err
}

// sharedOutputFault is the original's word on what does not go together; nil: nothing is
// wrong.
func sharedOutputFault(o *output) error {
	switch {
	case o.classification > 0:
		return infer.Errorf(infer.InvalidArg, "Output can't set both 'shared_memory_region' and 'classification'")
	case o.binary:
		return infer.Errorf(infer.InvalidArg, "Output can't set both 'shared_memory_region' and 'binary_data'")
	}
	return nil
}
