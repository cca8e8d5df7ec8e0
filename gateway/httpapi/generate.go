package httpapi

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// Request headers that ask of a stream of events what the original has not.
const (
	// HeartbeatHeader asks for a comment whenever nothing was sent for so long: a
	// duration as "15s", or seconds.
	HeartbeatHeader = "X-Sluice-Heartbeat"
	// EventIDHeader set to "true" asks for an id of each event, its number from 1 on.
	EventIDHeader = "X-Sluice-Event-Ids"
)

// leastBeat bounds how often a client can make the server write for nothing.
const leastBeat = 100 * time.Millisecond

// generation is one call whose model may answer any number of times.
type generation struct {
	*exchange
	frame framing
	flow  flow
	count int // answers
}

// errExactly is the original's word on a model that does not answer a generate call once.
// Source: reference A6; there it has status 200.
func errExactly() error {
	return infer.Errorf(infer.InvalidArg, "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses")
}

// serveStreamed is one inference whose answers are sent one by one, or of which exactly
// one is expected (unframed, and flat).
func (a *API) serveStreamed(ctx context.Context, call *Call, rt route, reply *Reply, frame framing) {
	x := a.exchange(reply)
	x.call, x.streaming, x.flat = call, true, rt.kind == routeGenerate || rt.kind == routeGenerateStream
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.ctx = inner
	g := &generation{exchange: x, frame: frame}
	g.flow = flow{to: call.Stream, budget: a.responses, frame: frame, broken: cancel,
		fields: []Field{{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}}
	x.wrong = g.options()
	if err := g.open(rt); err != nil {
		g.finish(err)
	} else {
		a.pipeline.Infer(x.ctx, &x.m.req, g)
	}
	x.free()
}

// options reads what the client asks of the stream.
func (g *generation) options() error {
	h := g.call.Header
	g.flow.ids = strings.EqualFold(h.Get(EventIDHeader), "true")
	v := h.Get(HeartbeatHeader)
	if v == "" {
		return nil
	}
	d, err := time.ParseDuration(v)
	if seconds, e := strconv.ParseFloat(v, 64); e == nil && seconds < 1e6 {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d < leastBeat {
		return infer.Errorf(infer.InvalidArg, "%s is '%s', want a duration of at least %v", HeartbeatHeader, clip(v), leastBeat)
	}
	g.flow.beat = d
	return nil
}

// Done is infer.Sink's.
func (g *generation) Done(err error) infer.Flusher {
	g.finish(err)
	return nil
}

// Send is infer.Sink's.
func (g *generation) Send(resp *infer.Response) error {
	if g.m.req.Decoupled && resp.Final && len(resp.Outputs) == 0 && len(resp.Params) == 0 {
		resp.Memory.Release() // it only says that it is the last
		return nil
	}
	if g.count++; g.count > 1 && g.frame == unframed {
		resp.Memory.Release()
		g.fault = errExactly()
		return g.fault
	}
	of := infer.Response{Cache: resp.Cache, Age: resp.Age}
	b, err := g.document(resp) // resp is gone
	if err != nil {
		g.fault = err
		return err
	}
	g.sent = g.count
	if g.frame != unframed {
		err = g.flow.put(200, b)
		if cap(g.reply.buf) > keepBuffer {
			g.reply.buf = nil
		}
		return err
	}
	g.reply.reset()
	g.reply.json(b)
	g.reply.cacheFields(&of)
	return nil
}

// document encodes an answer, whose memory it gives back.
func (g *generation) document(resp *infer.Response) ([]byte, error) {
	if g.flat {
		defer resp.Memory.Release()
		if large(resp) {
			room := g.textSize(resp)
			if err := g.api.responses.Take(room); err != nil {
				return nil, err
			}
			defer g.api.responses.Give(room)
		}
		b, err := appendFlat(g.reply.buf[:0], resp)
		g.reply.buf = b
		return b, err
	}
	for i := range resp.Outputs {
		if g.wantsBinary(resp.Outputs[i].Name) {
			resp.Memory.Release()
			return nil, infer.Errorf(infer.InvalidArg, "output '%s' can't be binary in a stream of JSON", resp.Outputs[i].Name)
		}
	}
	resp.Params = append(resp.Params[:len(resp.Params):len(resp.Params)],
		infer.Param{Name: "triton_final_response", Value: infer.Value{Bool: resp.Final}})
	g.reply.reset()
	g.reply.memory = resp.Memory
	if err := g.encode(resp); err != nil {
		return nil, err
	}
	return g.reply.buf, nil
}

// finish makes the rest of the answer of an inference that ended with err. What fails
// before its model has it, and before an answer was sent, is answered as everywhere else.
func (g *generation) finish(err error) {
	x := g.exchange
	if g.fault != nil {
		err = g.fault
	}
	if err == nil && g.frame == unframed && g.count == 0 {
		err = errExactly()
	}
	if g.frame == unframed || err != nil && !g.flow.begun() && x.m.req.Times.QueueStart == 0 {
		x.fault = nil
		x.encoding = ""
		x.conclude(err)
		return
	}
	if err != nil {
		x.m.end.Err = err
		x.api.failure(x.ctx, x.call.Path, &x.m.req, err)
		g.flow.putError(err)
	}
	status, sent, fault := g.flow.close()
	x.reply.reset()
	x.reply.Status, x.reply.Length, x.reply.Streamed = status, sent, true
	if fault != nil && err == nil {
		x.m.end.Err = infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "the client has gone: %w", fault)
	}
	x.reply.received(&x.m.req)
	x.m.req.Memory.Release()
	x.api.ended(x, x.call)
}

// decodeFlat reads the body of a generate call.
// Source: reference A6.
func (x *exchange) decodeFlat(b *bodyReader, call *Call) (err error) {
	if x.wrong != nil {
		return x.wrong
	}
	if _, e := call.encodings(); e != "" && e != "identity" {
		return infer.Errorf(infer.InvalidArg, "Unsupported content-encoding, only 'identity' is supported.")
	}
	if x.json, err = b.prefix(x.json, b.length, x.api.limits.MaxJSON); err != nil {
		return err
	}
	meta, err := x.api.control.ModelMetadata(x.m.req.Model, x.m.req.Version)
	if err != nil {
		return err
	}
	if err = x.generation(x.json, meta.GetInputs()); err != nil {
		x.m.req.ID = x.idIn()
		return err
	}
	x.arrange()
	x.fill(x.m, string(x.text))
	x.m.req.Memory, err = x.tensors(b, x.api.bodies, x.m.req.Inputs)
	return err
}

// fit appends the shape that count elements of an input have: its last variable dimension
// takes them, all others are 1.
// Source: the original 2.51, asked with shapes of all kinds.
func fit(to, shape []int64, count int64) ([]int64, bool) {
	last, rest := -1, count
	for i, d := range shape {
		switch {
		case d < 0:
			last = i
		case d == 0 || rest%d != 0:
			return to, false
		default:
			rest /= d
		}
	}
	if last < 0 && rest != 1 {
		return to, false
	}
	for i, d := range shape {
		switch {
		case i == last:
			d = rest
		case d < 0:
			d = 1
		}
		to = append(to, d)
	}
	return to, true
}

// member of a flat document.
type flatMember struct {
	name string
	text string // of id, model_name and model_version
	of   int    // 0: text; positive: the parameter of-1; negative: the output -of-1
}

// appendFlat encodes a response for generate: outputs and parameters are members beside
// id, model_name and model_version, sorted by their names; what comes first of one name
// counts. An output of one element is no array.
// Source: reference A6.
func appendFlat(b []byte, resp *infer.Response) ([]byte, error) {
	members := make([]flatMember, 0, 3+len(resp.Params)+len(resp.Outputs))
	if resp.ID != "" {
		members = append(members, flatMember{name: "id", text: resp.ID})
	}
	members = append(members, flatMember{name: "model_name", text: resp.Model}, flatMember{name: "model_version", text: resp.Version})
	for i := range resp.Params {
		members = append(members, flatMember{name: resp.Params[i].Name, of: i + 1})
	}
	for i := range resp.Outputs {
		members = append(members, flatMember{name: resp.Outputs[i].Name, of: -i - 1})
	}
	slices.SortStableFunc(members, func(a, b flatMember) int { return strings.Compare(a.name, b.name) })
	members = slices.CompactFunc(members, func(a, b flatMember) bool { return a.name == b.name })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(json.AppendString(b, m.name), ':')
		switch {
		case m.of == 0:
			b = json.AppendString(b, m.text)
		case m.of > 0:
			b = appendValue(b, &resp.Params[m.of-1].Value)
		default:
			var err error
			if b, err = appendFlatOutput(b, &resp.Outputs[-m.of-1]); err != nil {
				return b, err
			}
		}
	}
	return append(b, '}'), nil
}

func appendFlatOutput(b []byte, o *infer.Tensor) ([]byte, error) {
	if err := checkSize(o); err != nil {
		return b, err
	}
	at := len(b)
	b, ok := json.AppendData(b, o.Datatype, o.Data)
	if !ok {
		return b, noForm(o.Datatype)
	}
	if n, err := infer.Elements(o.Shape); err == nil && n == 1 {
		b = append(b[:at], b[at+1:len(b)-1]...)
	}
	return b, nil
}

func appendCount(b []byte, n int) []byte { return strconv.AppendInt(b, int64(n), 10) }
