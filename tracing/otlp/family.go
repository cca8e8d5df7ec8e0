package otlp

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// The names of spans. InferRequest and compute are the original's; a request at its
// model has the model's name, as there.
const (
	nameCall      = "InferRequest"
	nameAdmission = "admission"
	nameCache     = "cache lookup"
	nameQueue     = "queue"
	nameCompute   = "compute"
	nameBatch     = "batch"
	nameInput     = "input"
	nameInfer     = "infer"
	nameOutput    = "output"
)

// encoder writes the spans of calls into the buffers of their resources.
type encoder struct {
	base    int64 // what to add to infer.Now for Unix nanoseconds
	baggage []string
	span    span
	steps   map[uint64]*infer.Trace // of the family; nil where it has no steps

	gateway []byte            // spans of this process
	workers map[string][]byte // and of the workers, by their names
	spans   int
}

// keepBuffer is the most memory that a buffer keeps for the next export.
const keepBuffer = 4 << 20

// reset makes the buffers empty.
func (e *encoder) reset() {
	e.spans = 0
	if e.gateway = e.gateway[:0]; cap(e.gateway) > keepBuffer {
		e.gateway = nil
	}
	for name, b := range e.workers {
		if len(b) == 0 { // it had nothing to do, or is gone
			delete(e.workers, name)
			continue
		}
		e.workers[name] = b[:0]
	}
}

// family writes all spans of one call.
func (e *encoder) family(f *infer.TraceFamily) {
	call := f.Call
	clear(e.steps)
	if len(f.Traces) > 1 {
		if e.steps == nil {
			e.steps = map[uint64]*infer.Trace{}
		}
		for _, t := range f.Traces {
			e.steps[t.ID] = t
		}
	}
	e.call(f, call)
	if call.Admitted != 0 {
		e.admission(call)
	}
	for _, t := range f.Traces {
		if t.Start != 0 {
			e.request(call, t)
		}
	}
}

// at is a moment in Unix nanoseconds.
func (e *encoder) at(now int64) int64 { return e.base + now }

// child begins a span of this process below another.
func (e *encoder) child(in *infer.SpanContext, parent infer.SpanID, name string, from, to int64) {
	e.span.start(in, parent, name, kindInternal, e.at(from), e.at(to))
	e.span.flags(false)
}

func (e *encoder) done() {
	e.gateway = e.span.done(e.gateway)
	e.spans++
}

// inside is a new span in the same trace.
func inside(in *infer.SpanContext) *infer.SpanContext {
	return &infer.SpanContext{Trace: in.Trace, Span: infer.NewSpanID(), Sampled: true}
}

// call writes the span of the call itself, from its opening to when the transport has
// taken its answer.
func (e *encoder) call(f *infer.TraceFamily, c *infer.TraceCall) {
	env, s := &c.Envelope, &e.span
	from, to := env.Opened, c.Ended
	for _, t := range f.Traces {
		for i := range t.Marks {
			from, to = min(from, cmp.Or(t.Marks[i].At, from)), max(to, t.Marks[i].At)
		}
	}
	s.start(&c.Span, c.Parent, callName(env, c.End.Status), kindServer, e.at(from), e.at(to))
	s.flags(c.Parent != (infer.SpanID{}))
	s.b = text(s.b, spanState, c.State)
	if env.Protocol == "grpc" {
		s.str("rpc.system", "grpc")
		s.str("rpc.service", "inference.GRPCInferenceService")
		s.str("rpc.method", env.Method)
		s.num("rpc.grpc.status_code", int64(c.End.Status))
	} else {
		s.str("http.request.method", env.Method)
		s.str("url.path", env.Path)
		s.num("http.response.status_code", int64(c.End.Status))
		s.num("http.request.body.size", c.End.Received)
		s.num("http.response.body.size", c.End.Sent)
	}
	if env.Remote.IsValid() {
		s.str("client.address", env.Remote.Addr().Unmap().String())
	}
	s.str("http.request.id", env.RequestID)
	if p := env.Principal; p != nil && p.Name != "" {
		s.str("enduser.id", p.Name)
		s.str("sluice.auth.method", p.Method)
		s.str("sluice.tenant", p.Tenant)
	}
	if env.Action != infer.ActionInference || len(f.Traces) == 0 {
		s.str("triton.model_name", env.Model)
	}
	if c.Baggage != "" {
		e.bags(c.Baggage)
	}
	for _, t := range f.Traces {
		if t.Parent == 0 {
			e.marks(t)
		}
	}
	e.failed(c.End.Err)
	e.done()
}

// callName names the span of a call: one word for all of its kind.
func callName(env *infer.Envelope, status int) string {
	switch {
	case env.Action == infer.ActionInference:
		return nameCall
	case env.Protocol == "grpc":
		return env.Method
	case env.Model == "" && status == 404:
		return env.Method
	}
	return env.Method + " " + shape(env.Path)
}

// shape is a path of the protocol with words in place of the names that stand in it,
// which callers choose.
func shape(path string) string {
	if path == "/v2/models/stats" {
		return path
	}
	parts := strings.Split(path, "/")
	for i := 1; i < len(parts); i++ {
		switch parts[i-1] {
		case "models":
			parts[i] = "{model}"
		case "versions":
			parts[i] = "{version}"
		case "region":
			parts[i] = "{region}"
		case "repository":
			if parts[i] != "index" && parts[i] != "models" {
				parts[i] = "{repository}"
			}
		}
	}
	return strings.Join(parts, "/")
}

// marks writes what a front end and its request took down, in order of time.
func (e *encoder) marks(t *infer.Trace) {
	slices.SortStableFunc(t.Marks, func(a, b infer.TraceMark) int { return cmp.Compare(a.At, b.At) })
	for i, m := range t.Marks {
		if m.At > 0 && i < maxEvents {
			e.span.event(m.Name, e.at(m.At))
		}
	}
}

// maxEvents is how many moments one span has at most.
// Source: OTEL_SPAN_EVENT_COUNT_LIMIT's default in the OpenTelemetry specification.
const maxEvents = 128

// bags writes the members of a caller's baggage that are asked for.
// Source: W3C Baggage.
func (e *encoder) bags(header string) {
	for member := range strings.SplitSeq(header, ",") {
		member, _, _ = strings.Cut(member, ";") // properties
		key, value, ok := strings.Cut(member, "=")
		key = strings.TrimSpace(key)
		if !ok || !slices.Contains(e.baggage, key) {
			continue
		}
		if v, err := url.PathUnescape(strings.TrimSpace(value)); err == nil {
			e.span.str("baggage."+key, v)
		}
	}
}

// failed gives the span the status of an error, and its reason.
func (e *encoder) failed(err error) {
	if err == nil {
		return
	}
	var known *infer.Error
	message := err.Error()
	switch st, isStatus := status.FromError(err); {
	case infer.ReasonOf(err) != "":
		e.span.str("error.type", string(infer.ReasonOf(err)))
	case errors.As(err, &known):
		e.span.str("error.type", known.Code.String())
	case isStatus:
		e.span.str("error.type", st.Code().String())
		message = st.Message()
	default:
		e.span.str("error.type", infer.CodeOf(err).String())
	}
	e.span.failed(message)
}

// admission writes what identity and limits took.
func (e *encoder) admission(c *infer.TraceCall) {
	e.child(inside(&c.Span), c.Span.Span, nameAdmission, c.Envelope.Opened, c.Admitted)
	e.failed(c.Refused)
	e.done()
}

// above is the span under which a request's stands.
func (e *encoder) above(c *infer.TraceCall, t *infer.Trace) infer.SpanID {
	if p := e.steps[t.Parent]; p != nil && t.Parent != 0 {
		return p.Span
	}
	return c.Span.Span
}

// request writes the spans of one request, or of one step of an ensemble.
func (e *encoder) request(c *infer.TraceCall, t *infer.Trace) {
	x, s := &t.Times, &e.span
	in := &infer.SpanContext{Trace: c.Span.Trace, Span: t.Span, Sampled: true}
	e.child(in, e.above(c, t), t.Model, t.Start, x.RequestEnd)
	s.str("triton.model_name", t.Model)
	if v, err := strconv.ParseInt(t.Version, 10, 64); err == nil {
		s.num("triton.model_version", v)
	}
	s.num("triton.trace_id", int64(t.ID))
	s.num("triton.trace_parent_id", int64(t.Parent))
	s.str("triton.request_id", t.RequestID)
	s.str("sluice.cache", x.Cache.String())
	if x.BatchRows > 0 {
		s.num("sluice.batch.rows", int64(x.BatchRows))
	}
	s.event("REQUEST_START", e.at(t.Start))
	if at := cmp.Or(x.QueueStart, t.Queued); at != 0 {
		s.event("QUEUE_START", e.at(at))
	}
	s.event("REQUEST_END", e.at(x.RequestEnd))
	e.failed(t.Err)
	e.done()
	if x.CacheLookup > 0 {
		e.lookup(in, t)
	}
	if x.QueueStart > 0 && !x.CacheHit && !e.ensemble(t) {
		e.queued(in, t)
	}
}

// ensemble says that other requests were executed in place of this one. A model that calls others is
// executed itself.
func (e *encoder) ensemble(t *infer.Trace) bool {
	if len(t.Batches) > 0 {
		return false
	}
	for _, s := range e.steps {
		if s.Parent == t.ID {
			return true
		}
	}
	return false
}

// lookup writes the span of the response cache: of the lookup alone, though what the
// record has counts the keeping of an answer as well.
func (e *encoder) lookup(in *infer.SpanContext, t *infer.Trace) {
	x := &t.Times
	end := t.Queued + x.CacheLookup
	if x.QueueStart > t.Queued {
		end = min(end, x.QueueStart)
	}
	e.child(inside(in), in.Span, nameCache, t.Queued, min(end, x.RequestEnd))
	e.span.str("sluice.cache", x.Cache.String())
	e.done()
}

// queued writes the wait, and the execution where there was one.
func (e *encoder) queued(in *infer.SpanContext, t *infer.Trace) {
	x := &t.Times
	end := cmp.Or(x.ComputeStart, x.RequestEnd)
	if n := len(t.Batches); x.ComputeStart == 0 && n > 0 {
		end = min(end, cmp.Or(t.Batches[n-1].Started, end)) // the caller left while it ran
	}
	e.child(inside(in), in.Span, nameQueue, x.QueueStart, end)
	if x.ComputeStart == 0 && len(t.Batches) == 0 {
		e.failed(t.Err) // it never left the queue
	}
	e.done()
	compute := in.Span
	if x.ComputeStart > 0 {
		compute = e.compute(in, t)
	}
	for i, b := range t.Batches {
		if b.Span.Trace != in.Trace || b.Links[0].Span != t.Span {
			continue // it stands in the trace of another request
		}
		parent := compute
		if i < len(t.Batches)-1 {
			parent = in.Span // an execution before the last
		}
		e.batch(b, parent)
	}
}

// compute writes the original's span of the execution, as the request saw it.
func (e *encoder) compute(in *infer.SpanContext, t *infer.Trace) infer.SpanID {
	x, s := &t.Times, &e.span
	at := inside(in)
	e.child(at, in.Span, nameCompute, x.ComputeStart, x.ComputeEnd)
	s.event("COMPUTE_START", e.at(x.ComputeStart))
	s.event("COMPUTE_INPUT_END", e.at(x.ComputeInputEnd))
	s.event("COMPUTE_OUTPUT_START", e.at(x.ComputeOutputStart))
	s.event("COMPUTE_END", e.at(x.ComputeEnd))
	for _, b := range t.Batches {
		s.link(&b.Span)
	}
	e.done()
	return at.Span
}

// batch writes one execution, with links to all sampled requests in it, and what the
// worker measured of it.
func (e *encoder) batch(b *infer.TraceBatch, parent infer.SpanID) {
	s := &e.span
	e.child(&b.Span, parent, nameBatch, b.Started, b.Ended)
	s.num("sluice.batch.id", int64(b.ID))
	s.num("sluice.batch.requests", int64(b.Requests))
	s.num("sluice.batch.rows", int64(b.Rows))
	if b.Attempt > 0 {
		s.num("sluice.batch.attempt", int64(b.Attempt))
	}
	s.str("sluice.instance", b.Instance)
	s.str("sluice.worker", b.Worker)
	for i := range b.Links {
		s.link(&b.Links[i])
	}
	e.failed(b.Err)
	e.done()
	if b.Compute == (infer.ComputeTimes{}) {
		return
	}
	// The worker tells durations by its own clock; the answer came right behind them.
	output := b.Ended - max(b.Compute.Output, 0)
	run := output - max(b.Compute.Infer, 0)
	input := run - max(b.Compute.Input, 0)
	e.worker(b, nameInput, input, run)
	e.worker(b, nameInfer, run, output)
	e.worker(b, nameOutput, output, b.Ended)
}

// worker writes a span of the worker that had the batch.
func (e *encoder) worker(b *infer.TraceBatch, name string, from, to int64) {
	e.span.start(inside(&b.Span), b.Span.Span, name, kindInternal, e.at(max(from, b.Started)), e.at(to))
	e.span.flags(false)
	e.span.str("sluice.instance", b.Instance)
	e.workers[b.Worker] = e.span.done(e.workers[b.Worker])
	e.spans++
}
