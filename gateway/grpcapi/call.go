package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// copyFrom is the size from which a message is copied out of its frames: workers read
// memory of that size where it lies, so it must lie in Bodies' memory.
const copyFrom = 32 << 10

// Call is one ModelInfer call: the message that a transport's codec decodes into and
// the message that it encodes. It is not used again after a failure, since whoever holds
// a reference to the request's memory may still read the request.
type Call struct {
	callState
	s   *Service
	ctx context.Context // the call's

	// memory for what most calls need, in one allocation
	dims  [8]int64
	small [256]byte
	room  []byte // for messages above that
}

// callState is what a Call knows of its request.
type callState struct {
	Request infer.Request
	stream  *h2.Stream // on our own transport; nil: on another

	emptyFinal bool  // triton_enable_empty_final_response
	size       int64 // bytes of the message
	decoded    bool  // the message was seen, even if err says that it is wrong
	err        error // of decoding
	answered   bool  // send was called
	sendErr    error // what it returned
	result     error // of a call that waits: what its caller hears
	reply      mem.BufferSlice
	message    *inference.ModelInferResponse // in place of reply, with StandardCodec
	envelope   infer.Envelope
	end        infer.End

	uses []regions.Use // of tensors that lie in regions

	shapes  []int64
	inputs  [2]infer.Tensor
	outputs [2]infer.RequestedOutput
	parts   [4]mem.Buffer
	tiny    mem.SliceBuffer
}

func newCall() *Call {
	c := &Call{}
	c.shapes = c.dims[:0]
	return c
}

func text(b []byte) (string, bool) { return string(b), utf8.Valid(b) }

// decode reads a message out of the transport's buffers, which it references as long
// as the request's memory lives or not at all. Its error stays in c, so that the
// handler chooses code and text.
func (s *Service) decode(c *Call, data mem.BufferSlice) {
	c.decoded = true
	c.size = int64(data.Len())
	d, ok := s.decoders.Get().(*decoder)
	if !ok {
		d = &decoder{}
	}
	c.err = s.decodeWith(d, c, data)
	d.reset()
	s.decoders.Put(d)
}

func (s *Service) decodeWith(d *decoder, c *Call, data mem.BufferSlice) error {
	if len(data) == 0 {
		return d.request(c, nil)
	}
	var err error
	if len(data) == 1 && data[0].Len() < copyFrom {
		s.keep(c, data[0])
		err = d.request(c, data[0].ReadOnlyData())
	} else {
		err = d.large(c, data, s.bodies)
	}
	if err != nil {
		return err
	}
	return d.bind(c, s.bodies)
}

func (d *decoder) large(c *Call, data mem.BufferSlice, bodies Bodies) error {
	head, whole, err := d.gather(c, data, bodies)
	switch {
	case err == nil && !whole:
		return d.request(c, head)
	case err == nil:
		err = d.decodeWhole(c, data, bodies)
	}
	if err != nil && c.Request.Model == "" {
		// For the count of refusals: what was gathered names the model, as a rule. That
		// the call is refused is settled, so a second fault adds nothing.
		_ = d.request(c, d.head)
	}
	return err
}

// release gives back the request's memory, once. Where the caller has left, a batch may still
// have the request, and reads of it: nothing of it changes.
func (c *Call) release() { c.Request.Memory.Release() }

// modelInfer is the handler of ModelInfer on the hand-written codec.
func modelInfer(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	s, c := srv.(*Service), newCall()
	if err := s.wait(ctx, c, func() error { return cmp.Or(dec(c), c.err) }); err != nil {
		c.traceSent()
		return nil, err
	}
	return c, nil // the codec ends its trace
}

// wait is ModelInfer on a goroutine that waits: receive reads the message. The error is the
// transport's.
func (s *Service) wait(ctx context.Context, c *Call, receive func() error) error {
	err := s.serve(ctx, c, receive)
	if err != nil {
		err = s.failed(ctx, "ModelInfer", &c.Request, err)
	} else {
		s.count(codes.OK)
	}
	s.ended(c, err)
	return err
}

// ended tells the pipeline that a call has its answer; err is the transport's.
func (s *Service) ended(c *Call, err error) {
	c.end.Request, c.end.Err, c.end.Status = &c.Request, err, int(status.Code(err))
	c.end.Received = c.size
	if err == nil {
		c.end.Sent = int64(c.reply.Len())
	}
	s.pipeline.Close(&c.envelope, &c.end)
}

// serve is the way of one inference that is waited for: open, receive, infer, encode. A panic
// of ours ends it.
func (s *Service) serve(ctx context.Context, c *Call, receive func() error) (err error) {
	defer recovered(&err)
	c.envelope.Method = "ModelInfer"
	c.Request.Envelope = &c.envelope
	if ctx, err = s.open(ctx, &c.envelope, infer.ActionInference, "", ""); err != nil {
		return err
	}
	ctx, cancel := ahead(ctx)
	defer cancel()
	defer c.release()
	defer c.traceSending()
	if err := s.arrive(ctx, c, receive); err != nil {
		return err
	}
	s.chooseCompression(ctx)
	c.s, c.ctx = s, ctx
	s.pipeline.Infer(ctx, &c.Request, c)
	return c.result
}

// recovered makes an error of a panic of ours.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = infer.Recovered(p)
	}
}

// arrive receives the request.
func (s *Service) arrive(ctx context.Context, c *Call, receive func() error) error {
	c.Request.TraceSend, c.Request.Envelope = true, &c.envelope
	if err := receive(); err != nil {
		s.pipeline.Refused(ctx, &c.Request, err)
		if c.Request.Trace != nil {
			c.traceReceived()
		}
		return err
	}
	c.Request.Times.RequestStart = infer.Now()
	if len(c.uses) > 0 {
		if err := s.attach(c); err != nil {
			s.pipeline.Refused(ctx, &c.Request, err)
			return err
		}
	}
	if s.forward != nil {
		return s.forwardHeaders(ctx, &c.Request)
	}
	return nil
}

// maxInline is how many outputs are encoded at once by who has the results: small ones are
// copied, each at most byReference.
const maxInline = 16

// Large is infer.Sink's.
func (c *Call) Large(r *infer.Response) bool { return len(r.Outputs) > maxInline }

// Send is infer.Sink's.
func (c *Call) Send(r *infer.Response) error {
	cacheTrailer(c.ctx, c.stream, r)
	c.sendErr = c.s.send(c, r)
	return c.sendErr
}

// Done is infer.Sink's, of a call that waits.
func (c *Call) Done(err error) infer.Flusher {
	c.result = c.settle(err)
	return nil
}

// settle is what follows an inference that ended with err; its result is what the caller
// hears.
func (c *Call) settle(err error) error {
	c.s.loadTrailer(c.ctx, c.stream)
	if c.envelope.Timings {
		timingTrailer(c.ctx, c)
	}
	if c.Request.Trace != nil {
		c.traceReceived()
	}
	if err == nil {
		err = c.sendErr
	}
	if errors.Is(err, infer.ErrDecoupled) {
		err = errDecoupled()
	}
	if err == nil && !c.answered {
		err = infer.Errorf(infer.Internal, "model '%s' gave no response", c.Request.Model)
	}
	if err != nil {
		c.reply.Free()
	}
	return err
}

// ahead moves a call's deadline as lifetime.Ahead says. Our own transport does so itself for
// a Method.
func ahead(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	left := time.Until(at)
	return context.WithDeadline(ctx, at.Add(lifetime.Ahead(left)-left))
}

// errDecoupled is the original's word on a model that may answer more or less than
// once. Source: reference A3, ModelInfer on decoupled.
func errDecoupled() error {
	return infer.Errorf(infer.Unsupported, "ModelInfer RPC doesn't support models with decoupled transaction policy")
}

// send takes the one response of a unary call, and its memory.
func (s *Service) send(c *Call, r *infer.Response) (err error) {
	if c.answered {
		r.Memory.Release()
		return errDecoupled()
	}
	c.answered = true
	if s.standard {
		c.message, err = toMessage(r)
		return err
	}
	return s.encode(c, r)
}

// open asks the pipeline, and waits for its answer. What comes back is the context that the
// call goes on with; a refused one keeps its own, for the answer.
func (s *Service) open(ctx context.Context, env *infer.Envelope, action infer.Action, model, version string) (context.Context, error) {
	env.Protocol, env.Action, env.BodySize = "grpc", action, -1
	env.Model, env.Version = model, version
	if st, ok := h2.FromContext(ctx); ok {
		env.Header, env.Fields = st.Header, st
		env.Remote, env.Unix, env.Peer = st.Caller()
		env.Certificate = st.Certificate()
	} else {
		env.Header, env.Fields = incoming{ctx}.get, incoming{ctx}
		if p, ok := peer.FromContext(ctx); ok {
			env.Remote, env.Unix, env.Peer = listen.Remote(p.Addr)
			env.Certificate = h2.Verified(p.AuthInfo)
		}
	}
	wait, err := s.opening(ctx, env)
	if wait != nil {
		err = wait()
	}
	if err != nil {
		return ctx, err
	}
	return env.Context(ctx), nil
}

// opening is the pipeline's Open until the service stops. The envelope is filled in by then:
// the access log and the counters of refusals tell of such calls too.
func (s *Service) opening(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	if s.stopping.Load() && env.Action != infer.ActionHealth {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText)
	}
	return s.pipeline.Open(ctx, env)
}

// incoming is the metadata of a call of grpc-go's.
type incoming struct{ ctx context.Context }

// get is the first value of a key, "" where there is none.
func (i incoming) get(key string) string {
	if v := metadata.ValueFromIncomingContext(i.ctx, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Count is how many values have a key.
func (i incoming) Count(key string) int { return len(metadata.ValueFromIncomingContext(i.ctx, key)) }
