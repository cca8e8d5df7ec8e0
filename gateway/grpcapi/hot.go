package grpcapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// Methods are what our own transport reads where it is received: ModelInfer. Everything
// else is Register's.
func (s *Service) Methods() map[string]h2.Method {
	if s.standard {
		return nil
	}
	return map[string]h2.Method{"/inference.GRPCInferenceService/ModelInfer": hotInfer{s}}
}

// hotInfer is ModelInfer as an h2.Method.
type hotInfer struct{ s *Service }

// Begin asks the pipeline, as far as it does not wait.
func (m hotInfer) Begin(ctx context.Context, old h2.Call) (h2.Call, error) {
	h, ok := old.(*hotCall)
	if !ok {
		h = &hotCall{}
		h.s = m.s
		h.header = func(key string) string { return h.stream.Header(key) }
	}
	h.shapes = h.dims[:0]
	h.stream, _ = ctx.(*h2.Stream)
	h.ctx = ctx
	if err := h.admit(); err != nil {
		return nil, &refusedCall{h, err}
	}
	return h, nil
}

// refusedCall is the end of a call that the pipeline did not open: h2's Refusal, since it is
// logged.
type refusedCall struct {
	h *hotCall
	error
}

var _ h2.Refusal = (*refusedCall)(nil)

// Tell implements h2.Refusal.
func (r *refusedCall) Tell() error {
	err := r.h.s.failed(r.h.ctx, "ModelInfer", &r.h.Request, r.error)
	r.h.s.ended(&r.h.Call, err)
	return err
}

// admit fills in what is known of the call, and is the pipeline's Open, as far as it does not
// wait. A panic of ours ends the one call.
func (h *hotCall) admit() (err error) {
	defer recovered(&err)
	env := &h.envelope
	h.Request.Envelope = env // the log of a refusal names its caller too
	env.Protocol, env.Method, env.Action, env.BodySize = "grpc", "ModelInfer", infer.ActionInference, -1
	env.Header, env.Fields = h.header, h.stream
	env.Remote, env.Unix, env.Peer = h.stream.Caller()
	env.Certificate = h.stream.Certificate()
	h.rest, err = h.s.opening(h.ctx, env)
	return err
}

// hotCall is one call of it, and the sink of its request.
type hotCall struct {
	Call                           // whose context is the stream
	header func(key string) string // the stream's, for the envelope; made once
	told   bool                    // the pipeline knows of the end
	rest   func() error            // what is left of the pipeline's Open; nil: nothing

	quick   bool // the message is one large tensor in its raw contents, and little else
	started bool // nobody waits for the answer: the scheduler brings it
	spent   bool // it was answered, and nobody reads the request any more
}

// Memory places a message so that its first large tensor is aligned.
func (h *hotCall) Memory(n int64, first []byte) (*infer.Buffer, error) {
	raw, size := firstRaw(first)
	h.quick = raw > 0 && n-size <= maxBeside
	pad := int64(0)
	if n >= copyFrom {
		pad = alignUp(raw) - raw
	}
	memory, err := h.s.bodies.Body(pad + n)
	if err != nil {
		// For the count of refusals: the beginning names the model, as a rule. That the
		// call is refused is settled, so a fault of what there is adds nothing.
		h.s.recognize(&h.Call, first)
	}
	return memory, err
}

// maxBeside is how much there may be beside a large tensor in a quick message: what is read
// field by field, and may be in any order.
const maxBeside = 32 << 10

// Quick says that nearly all of the message is one tensor in its raw contents, which is not
// looked at number by number.
func (h *hotCall) Quick() bool { return h.quick }

// firstRaw is where the first large raw_input_contents begins in a message, and its size; 0
// where its beginning has none.
func firstRaw(b []byte) (at, size int64) {
	cur := b
	for len(cur) > 0 {
		tag, n := varint(cur)
		if n <= 0 {
			return 0, 0
		}
		cur = cur[n:]
		if protowire.Type(tag&7) != protowire.BytesType {
			return 0, 0
		}
		l, n := varint(cur)
		if n <= 0 {
			return 0, 0
		}
		cur = cur[n:]
		if tag>>3 == 7 && l >= tensorAlign {
			return int64(len(b) - len(cur)), int64(min(l, 1<<62))
		}
		if l > uint64(len(cur)) {
			return 0, 0
		}
		cur = cur[l:]
	}
	return 0, 0
}

// Abort ends a call whose message never came.
func (h *hotCall) Abort(err error) {
	h.s.pipeline.Refused(h.ctx, &h.Request, err)
	h.s.ended(&h.Call, err)
}

// Start decodes and starts the inference.
func (h *hotCall) Start(memory *infer.Buffer, message []byte) (wait func()) {
	h.Request.Memory, h.size = memory, int64(len(message))
	if h.rest != nil {
		return func() { h.opened(message) }
	}
	if err := h.ready(message); err != nil {
		infer.Flush(h.end(err))
		return nil
	}
	if h.s.compress {
		// compressing would hold up others
		h.s.chooseCompression(h.ctx)
		return h.infer
	}
	h.started = true
	if b := h.stream.Burst(); b != nil {
		h.Request.Burst = b
	}
	if wait = h.s.pipeline.Start(h.ctx, &h.Request, h); wait != nil {
		h.started = false
	}
	return wait // where it is nil, h may be another call's by now
}

// opened is Start for a call whose opening waits.
func (h *hotCall) opened(message []byte) {
	err := h.admitted()
	if err == nil {
		err = h.ready(message)
	}
	if err != nil {
		infer.Flush(h.end(err))
		return
	}
	h.s.chooseCompression(h.ctx)
	h.infer()
}

func (h *hotCall) admitted() (err error) {
	defer recovered(&err)
	return h.rest()
}

// infer is the inference on a goroutine that waits.
func (h *hotCall) infer() { h.s.pipeline.Infer(h.ctx, &h.Request, h) }

func (h *hotCall) ready(message []byte) (err error) {
	defer recovered(&err)
	return h.s.arrive(h.ctx, &h.Call, func() error { return h.s.decodeOwned(&h.Call, message) })
}

// Done is infer.Sink's: the call is answered by whoever brings its end.
func (h *hotCall) Done(err error) (f infer.Flusher) {
	defer func() {
		if p := recover(); p != nil {
			h.failAside(infer.Recovered(p))
		}
	}()
	return h.end(h.settle(err))
}

// end answers. What is to be said of an error is told and logged on a goroutine of its
// own, since that may take its time.
func (h *hotCall) end(err error) infer.Flusher {
	h.traceSending()
	h.release()
	if err != nil {
		h.failAside(err)
		return nil
	}
	h.s.count(codes.OK)
	h.told, h.spent = true, h.started // a request that was answered in full is read by no instance
	h.s.ended(&h.Call, nil)
	return h.stream.Answer(h.reply, nil)
}

// failAside is fail on a goroutine, which who reads may have to make room for.
func (h *hotCall) failAside(err error) {
	burst := h.Request.Burst
	go h.fail(err)
	if burst != nil {
		burst.Woke()
	}
}

func (h *hotCall) fail(err error) {
	err = h.s.failed(h.ctx, "ModelInfer", &h.Request, err)
	if !h.told {
		h.s.ended(&h.Call, err)
	}
	infer.Flush(h.stream.Answer(nil, err))
}

// Sent ends the request's trace, and with it the call.
func (h *hotCall) Sent() (again bool) {
	h.traceSent()
	if !h.spent {
		return false
	}
	h.callState = callState{}
	h.ctx, h.told, h.rest, h.started, h.spent = nil, false, nil, false, false
	return true
}

// recognize reads the beginning of a message that is refused. It takes no memory: nobody would
// give it back.
func (s *Service) recognize(c *Call, first []byte) {
	d, ok := s.decoders.Get().(*decoder)
	if !ok {
		d = &decoder{}
	}
	_ = d.request(c, first) // what was read of it is there
	d.reset()
	s.decoders.Put(d)
}

// decodeOwned reads a message that lies in the request's memory.
func (s *Service) decodeOwned(c *Call, message []byte) error {
	d, ok := s.decoders.Get().(*decoder)
	if !ok {
		d = &decoder{}
	}
	err := d.request(c, message)
	if err == nil {
		err = d.bind(c, s.bodies)
	}
	d.reset()
	s.decoders.Put(d)
	return err
}
