package pipeline

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
)

// Timings says who finds the times of a call in its answer.
type Timings uint8

// The ways: callers who ask for it, nobody, everybody.
const (
	TimingsOnRequest Timings = iota
	TimingsNever
	TimingsAlways
)

// TimingHeader is the request header, or metadata key, that asks for Server-Timing.
const TimingHeader = "x-sluice-timing"

// TimingParam is the request parameter that asks for the times as parameters of the
// response.
const TimingParam = "sluice_timings"

func wanted(v string) bool { return v == "1" || v == "true" }

// wishes takes the parameter that asks for times out of the request: it is none of the
// model's, and must not tell one cached answer from another.
func (p *Pipeline) wishes(req *infer.Request) error {
	for i := range req.Params {
		if req.Params[i].Name != TimingParam {
			continue
		}
		v := req.Params[i].Value
		if v.Kind != infer.KindBool {
			return infer.Errorf(infer.InvalidArg, "invalid value type for '%s' parameter, expected bool_param.", TimingParam)
		}
		req.Timings = v.Bool && p.cfg.Timings != TimingsNever
		req.Params = slices.Delete(req.Params, i, i+1)
		return nil
	}
	return nil
}
