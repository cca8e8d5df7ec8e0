package grpcapi

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// param is one entry of a parameters map. set is false for an InferParameter without
// any choice.
type param struct {
	name  string
	value infer.Value
	set   bool
}

// The limits on what one message may hold, so that a few bytes can't claim many.
const (
	maxInputs  = 1024
	maxOutputs = 1024
	maxParams  = 256 // in one map
)

func tooMany(what string, most int) error {
	return infer.Errorf(infer.InvalidArg, "request has more than %d %s", most, what)
}

// addParam reads one entry of a parameters map; an entry whose key is there already
// takes its place.
func (d *decoder) addParam(list []param, entry []byte) ([]param, error) {
	c, f, p := cursor{entry}, field{}, param{}
	for len(c.b) > 0 {
		if !c.next(&f) {
			return list, errMalformed
		}
		switch {
		case f.isBytes(1):
			name, ok := d.names.of(f.val)
			if !ok {
				return list, errMalformed
			}
			p.name = name
		case f.isBytes(2):
			if err := d.paramValue(&p, f.val); err != nil {
				return list, err
			}
		}
	}
	for i := range list {
		if list[i].name == p.name {
			list[i] = p
			return list, nil
		}
	}
	if len(list) == maxParams {
		return list, tooMany("parameters", maxParams)
	}
	return append(list, p), nil
}

// paramValue reads an InferParameter; of its choices the last one counts.
func (d *decoder) paramValue(p *param, b []byte) error {
	c, f := cursor{b}, field{}
	for len(c.b) > 0 {
		if !c.next(&f) {
			return errMalformed
		}
		switch {
		case f.num == 1 && f.typ == protowire.VarintType:
			p.value = infer.Value{Kind: infer.KindBool, Bool: f.bits != 0}
		case f.num == 2 && f.typ == protowire.VarintType:
			p.value = infer.Value{Kind: infer.KindInt64, Int: int64(f.bits)}
		case f.isBytes(3):
			s, ok := d.names.of(f.val)
			if !ok {
				return errMalformed
			}
			p.value = infer.Value{Kind: infer.KindString, Str: s}
		case f.num == 4 && f.typ == protowire.Fixed64Type:
			p.value = infer.Value{Kind: infer.KindDouble, Double: math.Float64frombits(f.bits)}
		case f.num == 5 && f.typ == protowire.VarintType:
			p.value = infer.Value{Kind: infer.KindUint64, Int: int64(f.bits)}
		default:
			continue
		}
		p.set = true
	}
	return nil
}

func (p *param) is(k infer.Kind) bool { return p.set && p.value.Kind == k }

func wrongType(name, want string) error {
	return infer.Errorf(infer.InvalidArg, "invalid value type for '%s' parameter, expected %s.", name, want)
}

const (
	emptyFinalParam = "triton_enable_empty_final_response"
	reservedPrefix  = "triton_"
)

// apply puts the parameters of a request where they belong: reserved ones into their
// fields, all others into req.Params. All texts are those of the original over gRPC.
func apply(req *infer.Request, list []param) (emptyFinal bool, err error) {
	for i := range list {
		p := &list[i]
		switch p.name {
		case "sequence_id":
			err = sequenceID(req, p)
		case "sequence_start":
			req.SequenceStart, err = flag(p)
		case "sequence_end":
			req.SequenceEnd, err = flag(p)
		case emptyFinalParam:
			emptyFinal, err = flag(p)
		case "priority":
			err = priority(req, p)
		case "timeout":
			if !p.is(infer.KindInt64) {
				return false, wrongType(p.name, "int64_param")
			}
			// negative values are huge ones to the original, which reads them unsigned
			if us := p.value.Int; us > 0 && us <= math.MaxInt64/int64(time.Microsecond) {
				req.Timeout = time.Duration(us) * time.Microsecond
			}
		default:
			err = custom(req, p)
		}
		if err != nil {
			return false, err
		}
	}
	return emptyFinal, nil
}

func flag(p *param) (bool, error) {
	if !p.is(infer.KindBool) {
		return false, wrongType(p.name, "bool_param")
	}
	return p.value.Bool, nil
}

func sequenceID(req *infer.Request, p *param) error {
	switch {
	case p.is(infer.KindInt64), p.is(infer.KindUint64):
		req.Correlation.ID = uint64(p.value.Int)
	case p.is(infer.KindString):
		req.Correlation.Str = p.value.Str
	default:
		return wrongType(p.name, "int64_param or string_param")
	}
	return nil
}

func priority(req *infer.Request, p *param) error {
	switch {
	case p.is(infer.KindInt64) && p.value.Int < 0:
		return infer.Errorf(infer.InvalidArg, "invalid value for 'priority', expected value >= 0.")
	case p.is(infer.KindInt64), p.is(infer.KindUint64):
		req.Priority = uint64(p.value.Int)
		return nil
	}
	return wrongType(p.name, "int64_param or uint64_param")
}

func custom(req *infer.Request, p *param) error {
	if strings.HasPrefix(p.name, reservedPrefix) {
		return infer.Errorf(infer.InvalidArg, "parameter keys starting with '%s' are reserved for Triton usage. Only the following keys "+
			"starting with '%s' are allowed: %s", reservedPrefix, reservedPrefix, emptyFinalParam)
	}
	if !p.set || p.value.Kind == infer.KindUint64 {
		return wrongType(p.name, "int64_param, bool_param, or string_param")
	}
	req.Params = append(req.Params, infer.Param{Name: p.name, Value: p.value})
	return nil
}

// addOutput adds a requested output, whose parameters are put where they belong.
func (c *Call) addOutput(out infer.RequestedOutput, list []param) error {
	use, shared, err := sharedOf(out.Name, list)
	if err != nil {
		return err
	}
	if err := applyOutput(&out, list, shared); err != nil {
		return err
	}
	if shared {
		use.Output, use.Index = true, len(c.Request.Outputs)
		c.uses = append(c.uses, use)
	}
	c.Request.Outputs = append(c.Request.Outputs, out)
	return nil
}

const (
	regionParam = "shared_memory_region"
	sizeParam   = "shared_memory_byte_size"
	offsetParam = "shared_memory_offset"
)

// applyOutput puts the parameters of a requested output where they belong.
func applyOutput(out *infer.RequestedOutput, list []param, shared bool) error {
	for i := range list {
		p := &list[i]
		switch {
		case p.name == regionParam, p.name == sizeParam, p.name == offsetParam:
			continue
		case p.name != "classification":
			if p.set {
				out.Params = append(out.Params, infer.Param{Name: p.name, Value: p.value})
			}
			continue
		case shared:
			return infer.Errorf(infer.InvalidArg, "output can't set both 'shared_memory_region' and 'classification'")
		case !p.is(infer.KindInt64):
			return infer.Errorf(infer.InvalidArg, "invalid value type for 'classification' parameter, expected int64_param")
		case p.value.Int <= 0:
			return infer.Errorf(infer.InvalidArg, "invalid value for 'classification' parameter, expected >= 0")
		}
		out.Classification = p.value.Int
	}
	return nil
}

// sharedOf reads where a tensor lies in a region; false: in none. The texts are the
// original's, which takes negative numbers for huge ones as well.
func sharedOf(tensor string, list []param) (u regions.Use, shared bool, err error) {
	if len(list) == 0 {
		return u, false, nil
	}
	var r, s, o *param
	for i := range list {
		switch list[i].name {
		case regionParam:
			r = &list[i]
		case sizeParam:
			s = &list[i]
		case offsetParam:
			o = &list[i]
		}
	}
	wrong := func(name, want string) error {
		return infer.Errorf(infer.InvalidArg, "invalid value type for '%s' parameter for tensor '%s', expected %s.", name, tensor, want)
	}
	alone := func(name string) error {
		return infer.Errorf(infer.InvalidArg, "'%s' can not be specified without '%s' parameter for tensor '%s'", name, regionParam, tensor)
	}
	switch {
	case r == nil && s != nil:
		return u, false, alone(sizeParam)
	case r == nil && o != nil:
		return u, false, alone(offsetParam)
	case r == nil:
		return u, false, nil
	case !r.is(infer.KindString):
		return u, false, wrong(regionParam, "string_param")
	case s == nil:
		return u, false, infer.Errorf(infer.InvalidArg, "'%s' must be specified along with '%s' parameter for tensor '%s'", sizeParam, regionParam, tensor)
	case !s.is(infer.KindInt64):
		return u, false, wrong(sizeParam, "int64_param")
	case o != nil && !o.is(infer.KindInt64):
		return u, false, wrong(offsetParam, "int64_param")
	}
	u.Region, u.Size = r.value.Str, uint64(s.value.Int)
	if o != nil {
		u.Offset = uint64(o.value.Int)
	}
	return u, true, nil
}
