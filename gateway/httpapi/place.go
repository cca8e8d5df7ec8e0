package httpapi

import (
	"math"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
)

// place is where a tensor lies in a region, while the document is read.
// Source: the shared memory extensions.
type place struct {
	named  bool
	sized  bool
	region span // of form.text
	size   uint64
	offset uint64
}

func (p *place) regionOf(d *decoder) func() error {
	return func() (err error) {
		p.named = true
		p.region, err, _ = d.str("shared_memory_region")
		return err
	}
}

func (p *place) sizeOf(d *decoder) func() error {
	return func() (err error) {
		p.sized = true
		p.size, err = d.uint("shared_memory_byte_size")
		return err
	}
}

func (p *place) offsetOf(d *decoder) func() error {
	return func() (err error) {
		p.offset, err = d.uint("shared_memory_offset")
		return err
	}
}

// use is the place for the registry. Where no size is given none is right, as in the
// original.
func (p *place) use(d *form, index int, output bool) regions.Use {
	u := regions.Use{Region: string(d.text[p.region.from:p.region.to]), Offset: p.offset, Size: p.size, Index: index, Output: output}
	if !p.sized {
		u.Size = math.MaxUint64
	}
	return u
}

// attach gives the tensors that lie in regions their places. Without any it does nothing.
func (x *exchange) attach(call *Call) error {
	uses := x.uses[:0]
	for i := range x.said.inputs {
		if in := &x.said.inputs[i]; in.source == fromShared {
			uses = append(uses, in.place.use(x.said, i, false))
		}
	}
	for i := range x.said.outputs {
		if o := &x.said.outputs[i]; o.place.named {
			uses = append(uses, o.place.use(x.said, i, true))
		}
	}
	x.uses = uses
	if len(uses) == 0 {
		return nil
	}
	if x.api.regions == nil {
		return infer.ErrNoRegions()
	}
	env := &x.m.env
	env.Header, env.Fields = x.get, call.Header
	err := x.api.regions.Attach(env, &x.m.req, uses)
	env.Header, env.Fields = nil, nil
	clear(x.uses)
	return err
}
