package httpapi

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// The answers to requests with one head mostly differ in their data alone, so a kept head
// has the JSON part of its last answer, where all outputs are binary.

// keepAnswer is the most bytes of JSON that is kept of an answer, and answerEvery how many
// answers of another kind come before it gives way to one.
const (
	keepAnswer  = 4 << 10
	answerEvery = 16
)

// answers are those to requests with one kept head.
type answers struct {
	last   atomic.Pointer[keptAnswer]
	others atomic.Uint32 // that were no last
}

// keptAnswer is the JSON part of an answer behind the id, and what it was made of. It is
// never changed.
type keptAnswer struct {
	model, version string
	outputs        []infer.Tensor // without data
	sizes          []int          // of the data
	size           int64          // of all of them
	json           []byte
}

// fits says that the answer's JSON part is the kept one. Sizes and shapes were checked then.
func (k *keptAnswer) fits(resp *infer.Response) bool {
	if k == nil || len(resp.Params) > 0 || len(resp.Outputs) != len(k.outputs) || resp.Model != k.model || resp.Version != k.version {
		return false
	}
	for i := range resp.Outputs {
		o, of := &resp.Outputs[i], &k.outputs[i]
		if len(o.Data) != k.sizes[i] || o.Datatype != of.Datatype || o.Name != of.Name || !slices.Equal(o.Shape, of.Shape) || !o.Place.IsZero() {
			return false
		}
	}
	return true
}

// met takes down an answer whose JSON part behind the id is json.
func (a *answers) met(resp *infer.Response, json []byte, size int64) {
	if len(json) > keepAnswer || len(resp.Params) > 0 || a.last.Load() != nil && a.others.Add(1)%answerEvery != 0 {
		return
	}
	k := &keptAnswer{model: resp.Model, version: resp.Version, size: size, json: slices.Clone(json)}
	for i := range resp.Outputs {
		o := &resp.Outputs[i]
		if o.Datatype == infer.Bytes || !o.Place.IsZero() { // whose data are looked at each time
			return
		}
		k.outputs = append(k.outputs, infer.Tensor{Name: o.Name, Datatype: o.Datatype, Shape: slices.Clone(o.Shape)})
		k.sizes = append(k.sizes, len(o.Data))
	}
	a.last.Store(k)
}
