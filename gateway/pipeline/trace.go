package pipeline

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// Trace makes t decide which requests are traced. It is called before the first
// request.
func (p *Pipeline) Trace(t *tracing.Tracer) { p.tracer = t }

// versioned is a Model that knows its number.
type versioned interface{ VersionText() string }

// traced begins the trace of a request that is sampled, or that came with one since it
// is a step of another request.
func (p *Pipeline) traced(m Model, req *infer.Request) {
	if req.Trace == nil {
		req.Trace = p.tracer.Begin(req)
	}
	t := req.Trace
	if t == nil {
		return
	}
	t.Start = infer.Now()
	if v, ok := m.(versioned); ok {
		t.Version = v.VersionText()
	}
}

// responded takes down a response before its classes are made.
func responded(t *infer.Trace, resp *infer.Response, at int64) {
	t.Mark("INFER_RESPONSE_COMPLETE", at)
	t.Tensor(infer.TraceBackendOutput, resp.Outputs)
	if t.Version == "" {
		t.Version = resp.Version
	}
}

// untraced ends the trace of a request, unless its front end has more to say.
func untraced(req *infer.Request, err error) {
	req.Trace.Times, req.Trace.Err = req.Times, err
	if !req.TraceSend {
		req.Trace.End()
	}
}
