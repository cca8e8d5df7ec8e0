package pipeline

import "github.com/sluice-serve/sluice/infer"

// traced begins the trace of a request that is sampled, or that came with one since it
// is a step of another request.
func (p *Pipeline) traced(m Model, req *infer.Request) {
	if req.Trace == nil {
		req.Trace = p.deps.Tracer.Begin(req)
	}
	t := req.Trace
	if t == nil {
		return
	}
	t.Start = infer.Now()
	t.Version = m.VersionText()
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
