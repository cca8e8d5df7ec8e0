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
func modelInfer(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (reply any, err error) {
	s, c := srv.(*Service), newCall()
	defer func() {
		if p := recover(); p != nil {
			c.traceSent()
			reply, err = nil, s.failed(ctx, "ModelInfer", &c.Request, infer.Recovered(p))
			s.ended(c, err)
		}
	}()
	if err := s.serve(ctx, c, func() error { return cmp.Or(dec(c), c.err) }); err != nil {
		defer c.traceSent()
		err = s.failed(ctx, "ModelInfer", &c.Request, err)
		s.ended(c, err)
		return nil, err
	}
	s.count(codes.OK)
	s.ended(c, nil)
	return c, nil
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

// serve is the way of one inference: open, receive, infer, encode.
func (s *Service) serve(ctx context.Context, c *Call, receive func() error) error {
	c.envelope.Method = "ModelInfer"
	c.Request.Envelope = &c.envelope
	ctx, err := s.open(ctx, &c.envelope, infer.ActionInference, "", "")
	if err != nil {
		return err
	}
	ctx, cancel := ahead(ctx)
	defer cancel()
	return s.carry(ctx, c, receive)
}

// carry is the way of an inference that the pipeline has opened.
func (s *Service) carry(ctx context.Context, c *Call, receive func() error) error {
	defer c.release()
	defer c.traceSending()
	if err := s.arrive(ctx, c, receive); err != nil {
		return err
	}
	s.chooseCompression(ctx)
	return s.settle(ctx, c, s.pipeline.Infer(ctx, &c.Request, func(r *infer.Response) error { return s.take(ctx, c, r) }))
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

// take is what an inference's response is given to.
func (s *Service) take(ctx context.Context, c *Call, r *infer.Response) error {
	cacheTrailer(ctx, c.stream, r)
	c.sendErr = s.send(c, r)
	return c.sendErr
}

// settle is what follows an inference that ended with err; its result is what the caller
// hears.
func (s *Service) settle(ctx context.Context, c *Call, err error) error {
	s.loadTrailer(ctx, c.stream)
	if c.envelope.Timings {
		timingTrailer(ctx, c)
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

// open refuses calls while the service stops, else asks the pipeline.
func (s *Service) open(ctx context.Context, env *infer.Envelope, action infer.Action, model, version string) (context.Context, error) {
	env.Model, env.Version = model, version
	return s.openWith(ctx, env, action, s.pipeline.Open)
}

// openWith is open by one of the pipeline's ways.
func (s *Service) openWith(ctx context.Context, env *infer.Envelope, action infer.Action, open opener) (context.Context, error) {
	env.Protocol, env.Action, env.BodySize = "grpc", action, -1
	open = s.unlessStopping(open)
	if st, ok := h2.FromContext(ctx); ok {
		env.Header, env.Fields = st.Header, st
		env.Remote, env.Unix, env.Peer = st.Caller()
		env.Certificate = st.Certificate()
		return opened(ctx, env, open)
	}
	env.Header = func(key string) string {
		if v := metadata.ValueFromIncomingContext(ctx, key); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	env.Fields = incoming{ctx}
	if p, ok := peer.FromContext(ctx); ok {
		env.Remote, env.Unix, env.Peer = listen.Remote(p.Addr)
		env.Certificate = h2.Verified(p.AuthInfo)
	}
	return opened(ctx, env, open)
}

// unlessStopping is open until the service stops. The envelope is filled in by then: the
// access log and the counters of refusals tell of such calls too.
func (s *Service) unlessStopping(open opener) opener {
	if !s.stopping.Load() {
		return open
	}
	return func(ctx context.Context, env *infer.Envelope) (context.Context, error) {
		if env.Action == infer.ActionHealth {
			return open(ctx, env)
		}
		return nil, errStopping()
	}
}

func errStopping() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText)
}

// opener is the pipeline's Open or OpenStream.
type opener func(ctx context.Context, env *infer.Envelope) (context.Context, error)

// incoming is the metadata of a call of grpc-go's.
type incoming struct{ ctx context.Context }

// Count is how many values have a key.
func (i incoming) Count(key string) int { return len(metadata.ValueFromIncomingContext(i.ctx, key)) }

// opened asks the pipeline; who is refused keeps the call's own context, for the answer.
func opened(ctx context.Context, env *infer.Envelope, open opener) (context.Context, error) {
	rest, err := open(ctx, env)
	if err != nil {
		return ctx, err
	}
	return rest, nil
}
