package pipeline

import (
	"slices"
	"sync/atomic"

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

// InFlight are the calls of a protocol ("http" or "grpc") that were opened and have not
// ended.
func (p *Pipeline) InFlight(protocol string) int64 { return p.flight.of(protocol).Load() }

// flight counts calls by protocol.
type flight struct{ http, grpc atomic.Int64 }

func (f *flight) of(protocol string) *atomic.Int64 {
	if protocol == "grpc" {
		return &f.grpc
	}
	return &f.http
}

// begin takes down that a call was opened.
func (p *Pipeline) begin(env *infer.Envelope) {
	env.Opened = infer.Now()
	p.flight.of(env.Protocol).Add(1)
	switch p.cfg.Timings {
	case TimingsOnRequest:
		env.Timings = env.Header != nil && wanted(env.Header(TimingHeader))
	case TimingsAlways:
		env.Timings = true
	}
}

// finish takes down that a call has ended, if it was ever opened.
func (p *Pipeline) finish(env *infer.Envelope) {
	if env.Opened != 0 {
		p.flight.of(env.Protocol).Add(-1)
	}
}

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
