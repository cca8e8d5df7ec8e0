package httpapi

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/timing"
	"github.com/sluice-serve/sluice/infer"
)

// exchange is what one inference needs while it lasts; it is pooled.
type exchange struct {
	decoder
	said    *form     // decoder's, or a kept one, which is never changed
	kept    *keptHead // whose form it is; nil: decoder's
	uses    []regions.Use
	api     *API
	m       *message
	reply   *Reply
	json    []byte // the request's JSON part
	body    bodyReader
	inf     inflater
	ctx     context.Context // the call's
	call    *Call
	to      Answerer // where nobody waits
	started bool     // the scheduler brings the answer
	raw     bool     // a raw binary request: all outputs binary
	sent    int      // responses so far
	fault   error    // what is wrong with the response
	refused error    // why the request goes no further

	encoding string // of the answer; "": none

	streaming bool  // any number of answers can be taken
	flat      bool  // a generate call's document
	wrong     error // with the headers of a streamed call

	header Header
	get    func(key string) string // made once, since it would be an allocation
}

func (a *API) exchange(reply *Reply) *exchange {
	x, ok := a.exchanges.Get().(*exchange)
	if !ok {
		x = &exchange{api: a}
		x.get = func(key string) string { return x.header.Get(key) }
	}
	if x.m, ok = a.messages.Get().(*message); !ok {
		x.m = &message{}
	}
	x.reply, x.said = reply, &x.form
	return x
}

// free readies the exchange for another call.
func (x *exchange) free() {
	x.decoder.reset()
	x.said, x.kept = nil, nil
	x.m, x.reply, x.header, x.raw, x.sent, x.fault = nil, nil, nil, false, 0, nil
	x.ctx, x.call, x.to, x.started, x.encoding, x.refused = nil, nil, nil, false, "", nil
	x.streaming, x.flat, x.wrong = false, false, nil
	x.body, x.inf.in, x.inf.r = bodyReader{}, counter{}, nil
	if cap(x.json) > keepBuffer {
		x.json = nil
	}
	x.s.Reset(nil)
	x.api.exchanges.Put(x)
}

// envelope fills in what is known before the body.
func (a *API) envelope(env *infer.Envelope, call *Call, rt route) {
	*env = infer.Envelope{Protocol: "http", Method: call.Method, Path: call.Path,
		RequestID: call.Header.Get("X-Request-Id"), Remote: call.Remote, Unix: call.Unix, Peer: call.Peer, BodySize: call.Length, Certificate: call.Certificate}
	rt.describe(call.method(), env)
	if call.alias != nil && call.alias.own != nil {
		own := call.alias.own
		env.Action, env.Change, env.Model = own.Action, own.Change, own.Model
	}
}

// inference is one inference from headers to where it goes to the pipeline.
func (a *API) inference(ctx context.Context, call *Call, rt route, reply *Reply) *exchange {
	x := a.exchange(reply)
	x.ctx, x.call = ctx, call
	x.encoding, _ = call.encodings()
	x.refused = x.open(rt)
	return x
}

// open asks the pipeline, and reads the request. A panic of ours ends the one call.
func (x *exchange) open(rt route) (err error) {
	defer recovered(&err)
	a, call, m := x.api, x.call, x.m
	m.req.Model, m.req.Version = rt.model, rt.version
	a.envelope(&m.env, call, rt)
	m.req.Envelope = &m.env // the log of a refusal names its caller too
	m.env.Streaming, m.req.Streaming = x.streaming, x.streaming
	x.header, m.env.Header, m.env.Fields = call.Header, x.get, call.Header
	err = a.open(x.ctx, &m.env)
	m.env.Header, m.env.Fields = nil, nil // valid during Open only
	if m.req.Times.RequestStart = m.env.Opened; m.env.Opened == 0 {
		m.req.Times.RequestStart = infer.Now()
	}
	if err != nil {
		return err
	}
	m.req.TraceSend = true
	if err := x.decode(x.ctx, call); err != nil {
		a.pipeline.Refused(x.ctx, &m.req, err)
		return err
	}
	return nil
}

// open is the pipeline's Open, waited for.
func (a *API) open(ctx context.Context, env *infer.Envelope) error {
	wait, err := a.pipeline.Open(ctx, env)
	if wait != nil {
		err = wait()
	}
	return err
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = infer.Recovered(p)
	}
}

// conclude makes the reply of an inference that ended with err, and lets go of the request.
func (x *exchange) conclude(err error) {
	a := x.api
	switch {
	case x.fault != nil:
		err = x.fault
	case err == nil && x.sent == 0:
		err = infer.Errorf(infer.Internal, "model '%s' gave no response", x.m.req.Model)
	case err == nil && x.encoding != "":
		err = a.deflaters.compress(x.reply, x.encoding)
	case err == nil:
		a.typed(x.call, x.reply)
	}
	if err == nil {
		err = x.reply.hold(a.responses)
	}
	if err != nil {
		a.refuse(x.ctx, x.call, x, err)
	}
	x.reply.received(&x.m.req)
	x.m.req.Memory.Release() // what a batch still reads it holds itself
	a.ended(x, x.call)
}

// ended tells the pipeline that an inference has its answer, or lets the reply tell it when a Source was written.
func (a *API) ended(x *exchange, call *Call) {
	end := &x.m.end
	a.reportLoad(x, call)
	if x.m.env.Timings {
		x.reply.Set(timing.Header, string(timing.Append(nil, &x.m.env, &x.m.req)))
	}
	end.Status, end.Request, end.Sent = x.reply.Status, &x.m.req, x.reply.Length
	if end.Received = x.body.read; x.inf.r != nil { // as it came, before it grew
		end.Received = x.inf.in.n
	}
	if x.reply.Source != nil {
		e := &ending{pipeline: a.pipeline, m: x.m, from: x.reply.Source}
		x.reply.Source, x.reply.ending = e, e
		return
	}
	a.pipeline.Close(&x.m.env, end)
}

// ending is the end of a call whose body is made as it is written. It counts what is.
type ending struct {
	pipeline Pipeline
	m        *message // nobody else's any more
	from     Source
	sent     int64
}

// Next implements Source.
func (e *ending) Next() []byte {
	b := e.from.Next()
	e.sent += int64(len(b))
	return b
}

func (e *ending) held() int64 { return e.from.held() }
func (e *ending) close()      { e.from.close() }

// tell tells the pipeline that the call has ended.
func (e *ending) tell() {
	e.m.end.Sent = e.sent
	e.pipeline.Close(&e.m.env, &e.m.end)
}

// refuse answers with an error.
func (a *API) refuse(ctx context.Context, call *Call, x *exchange, err error) {
	if errors.Is(err, infer.ErrDecoupled) {
		err = infer.Errorf(infer.Unsupported, decoupledText)
	}
	x.m.end.Err = err
	a.fail(ctx, call, &x.m.req, x.reply, err)
	if _, ok := err.(unsupportedEncoding); ok {
		x.reply.Set("Accept-Encoding", "gzip, deflate")
	}
}

// clip bounds how much of a client's text an error repeats.
func clip(s string) string { return s[:min(len(s), 128)] }

// unsupportedEncoding is the refusal of a Content-Encoding.
type unsupportedEncoding struct{ error }

// Unwrap gives the error with its code.
func (e unsupportedEncoding) Unwrap() error { return e.error }

// decode reads headers and body into the request.
func (x *exchange) decode(ctx context.Context, call *Call) error {
	a := x.api
	x.body = bodyReader{ctx: ctx, from: call.Body, length: call.Length, limit: a.limits.MaxBody, model: x.m.req.Model}
	b := &x.body
	if call.Length > a.limits.MaxBody {
		return bodyTooLarge(call.Length, a.limits.MaxBody)
	}
	if x.wrong != nil || x.flat {
		return x.decodeFlat(b, call)
	}
	switch _, encoding := call.encodings(); encoding {
	case "", "identity":
	case "gzip", "deflate":
		if call.Length == 0 {
			break
		}
		if err := x.inf.open(call.Body, encoding, a.limits.MaxRatio); err != nil {
			return b.fault(err)
		}
		b.from, b.length, b.limit = &x.inf, -1, a.limits.MaxJSON
	default:
		return unsupportedEncoding{infer.Errorf(infer.Unsupported, "Unsupported compression type")}
	}
	length, err := a.headerLength(call, b.length)
	if err != nil {
		return err
	}
	if length >= 0 && b.length > length { // tensors
		if err := a.bodies.Fits(b.length - length); err != nil {
			return err
		}
	}
	if length == 0 {
		x.raw = true
		err = x.rawRequest(b, a.bodies, a.control)
	} else {
		err = x.jsonRequest(b, length)
	}
	if err != nil {
		return err
	}
	if a.forward != nil {
		return x.forward(a.forward, call.Header)
	}
	return nil
}

// headerLength is how much of a body is JSON: -1 for all of a body of unknown length,
// 0 for a raw binary request.
func headerLength(field string, length int64) (int64, error) {
	if field == "" {
		return length, nil
	}
	n, err := strconv.ParseInt(field, 10, 64)
	if err != nil || n < 0 || length >= 0 && n > length {
		if length < 0 {
			return 0, infer.Errorf(infer.InvalidArg, "inference header size should be positive, got: %s", clip(field))
		}
		return 0, infer.Errorf(infer.InvalidArg, "inference header size should be in range (0, %d), got: %s", length, clip(field))
	}
	return n, nil
}

// jsonRequest reads the JSON part of so many bytes and the tensors behind it.
func (x *exchange) jsonRequest(b *bodyReader, length int64) (err error) {
	if x.json, err = b.prefix(x.json, length, x.api.limits.MaxJSON); err != nil {
		return err
	}
	if length < 0 && len(x.json) == 0 {
		x.raw = true
		return x.rawRequest(&bodyReader{ctx: b.ctx, from: strings.NewReader(""), model: b.model}, x.api.bodies, x.api.control)
	}
	if err = x.head(length >= 0 && length < b.length); err != nil {
		return err
	}
	if x.m.req.Memory, err = x.said.tensors(b, x.api.bodies, x.m.req.Inputs); err != nil {
		return err
	}
	return x.attach(x.call)
}

// head fills the request with what its JSON part says. more says that bytes follow it.
func (x *exchange) head(more bool) error {
	h := x.api.heads.cut(x.json, more)
	if k := x.api.heads.find(&h); k != nil {
		x.said, x.kept = &k.form, k
		k.fill(x.m, k.all)
		x.m.req.Form = &k.same
		if h.named {
			x.m.req.ID = string(h.id)
		}
		return nil
	}
	if err := x.document(x.json); err != nil {
		x.m.req.ID = x.idIn()
		return err
	}
	if err := x.expanded(x.api.limits.MaxJSON); err != nil {
		return err
	}
	x.arrange()
	x.fill(x.m, string(x.text))
	x.api.heads.met(&h, &x.form)
	return nil
}

// idIn is the request's id as far as it was read, for the log.
func (x *exchange) idIn() string { return string(x.text[x.id.from:x.id.to]) }

// forward turns the headers that re matches into parameters. A parameter of
// the body goes before a header of its name.
// Source: --http-header-forward-pattern; the refusal of reserved names is 2.7x's.
func (x *exchange) forward(re *regexp.Regexp, h Header) (err error) {
	req := &x.m.req
	h.Each(func(name, value string) bool {
		if !re.MatchString(name) {
			return true
		}
		name = strings.ToLower(name)
		if reservedName(name) {
			err = infer.Errorf(infer.InvalidArg, "Header '%s' is reserved for Triton usage and cannot be forwarded.", name)
			return false
		}
		if _, ok := req.Params.Get(name); !ok {
			req.Params = append(req.Params, infer.Param{Name: name, Value: infer.Value{Kind: infer.KindString, Str: value}})
		}
		return true
	})
	return err
}

func reservedName(name string) bool {
	switch name {
	case "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output":
		return true
	}
	return strings.HasPrefix(name, "triton_")
}

var _ io.Reader = (*inflater)(nil)
