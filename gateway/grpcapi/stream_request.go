package grpcapi

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/gateway/lifetime"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// streamRequest is one request of a stream, and the sink of its answers. A request that
// belongs to a sequence begins when the one before it in the stream has ended: only so
// is their order sure.
type streamRequest struct {
	Call
	st   *inferStream
	life requestLife

	// Guarded by st.mu.
	older, younger *streamRequest // live
	before, next   *streamRequest // line
	inLine         bool
	over           bool           // no further answer is made
	ready          []streamAnswer // made, and waiting for their turn
	key            sequenceKey
	follower       *streamRequest // the next one of the sequence

	final bool // the last answer said that it is
	bytes int64
}

// requestLife is a request's context: it ends by itself, and with the stream it says what
// the stream's call says.
type requestLife struct {
	lifetime.Context
	of context.Context
}

var _ lifetime.Watchable = (*requestLife)(nil)

// Value is the call's.
func (l *requestLife) Value(key any) any { return l.of.Value(key) }

// Deadline is the call's; who serves the stream ends its requests.
func (l *requestLife) Deadline() (time.Time, bool) { return l.of.Deadline() }

func newStreamRequest(st *inferStream) *streamRequest {
	r := &streamRequest{st: st}
	r.shapes = r.dims[:0]
	r.life.of = st.ctx
	return r
}

var _ h2.Receiver = (*streamRequest)(nil)

// Receive implements h2.Receiver.
func (r *streamRequest) Receive(memory *infer.Buffer, message []byte) error {
	r.decoded, r.size, r.Request.Memory = true, int64(len(message)), memory
	r.err = r.st.s.decodeOwned(&r.Call, message)
	return nil
}

func (r *streamRequest) decodeStandard(m *inference.ModelInferRequest) {
	r.size = int64(proto.Size(m))
	r.err = fromMessage(&r.Call, m, r.st.s.bodies)
}

// begin puts the request into service.
func (r *streamRequest) begin() {
	st := r.st
	r.Request.Streaming, r.Request.TakesErrors, r.Request.Envelope = true, !st.strict, &r.envelope
	r.envelope.BodySize = r.size
	st.mu.Lock()
	st.live.add(r)
	st.line.add(r)
	if st.closed {
		defer r.life.End(context.Canceled) // close may have missed it
	}
	st.mu.Unlock()
	if err := r.arrive(); err != nil {
		r.finish(err)
		return
	}
	if !r.follows() {
		r.start()
	}
}

// arrive opens the request as a call, and completes it. A panic of ours ends the one request.
func (r *streamRequest) arrive() (err error) {
	defer recovered(&err)
	st := r.st
	if err := st.within(&r.envelope); err != nil {
		return err
	}
	r.envelope.Header, r.envelope.Fields = st.env.Header, st.env.Fields
	defer func() { r.envelope.Header, r.envelope.Fields = nil, nil }()
	return st.s.arrive(st.ctx, &r.Call, func() error { return r.err })
}

// within opens the request as a call.
func (st *inferStream) within(env *infer.Envelope) error {
	env.Outer = &st.env
	wait, err := st.s.pipeline.Open(st.ctx, env)
	if wait != nil {
		err = wait()
	}
	if err == nil && st.s.stopping.Load() {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText)
	}
	return err
}

// follows says that the request waits for another of its sequence, which then starts it.
func (r *streamRequest) follows() bool {
	if r.Request.Correlation.IsZero() {
		return false
	}
	st := r.st
	st.mu.Lock()
	defer st.mu.Unlock()
	r.key = sequenceKey{r.Request.Model, r.Request.Correlation}
	before := st.tails[r.key]
	if st.tails == nil {
		st.tails = map[sequenceKey]*streamRequest{}
	}
	st.tails[r.key] = r
	if before == nil {
		return false
	}
	before.follower = r
	return true
}

// start hands the request to the pipeline.
func (r *streamRequest) start() {
	wait, err := r.started()
	if err != nil {
		r.finish(err)
		return
	}
	if r.Request.Decoupled { // it may be over already
		r.leaveLine()
	}
	if wait != nil {
		go wait()
	}
}

func (r *streamRequest) started() (wait func(), err error) {
	defer recovered(&err)
	return r.st.s.pipeline.Start(&r.life, &r.Request, r), nil
}

// leaveLine lets the request's answers leave whatever others there are.
func (r *streamRequest) leaveLine() {
	r.st.mu.Lock()
	defer r.st.mu.Unlock()
	r.st.leaveLocked(r)
}

func (st *inferStream) leaveLocked(r *streamRequest) {
	if r.inLine {
		st.line.remove(r)
		st.queueLocked(r.ready...)
		r.ready = nil
		st.advanceLocked()
	}
}

// advanceLocked lets answers leave whose turn has come.
func (st *inferStream) advanceLocked() {
	for r := st.line.head; r != nil; r = st.line.head {
		st.queueLocked(r.ready...)
		r.ready = nil
		if !r.over {
			return
		}
		st.line.remove(r)
	}
}

// Large is infer.Sink's.
func (r *streamRequest) Large(resp *infer.Response) bool {
	if len(resp.Outputs) > maxInline {
		return true
	}
	size := 0
	for i := range resp.Outputs {
		size += len(resp.Outputs[i].Data)
	}
	return size > copyFrom && r.st.slow()
}

// slow says that the client does not take answers as fast as they come.
func (st *inferStream) slow() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.waiting >= stalled
}

// Send is infer.Sink's.
func (r *streamRequest) Send(resp *infer.Response) error {
	st := r.st
	if r.Request.Decoupled {
		r.leaveLine()
		if resp.Final && len(resp.Outputs) == 0 && len(resp.Params) == 0 {
			resp.Memory.Release() // it only says that it is the last
			return nil
		}
	}
	r.answered, r.final = true, resp.Final
	resp.Params = withFinal(resp.Params, resp.Final)
	var a streamAnswer
	var err error
	if resp.Err != nil {
		a = st.s.faultOf(resp.Err.Error(), &infer.Response{ID: resp.ID, Model: resp.Model, Params: resp.Params})
		resp.Memory.Release()
	} else if a, err = st.s.answerOf(resp, st.slow()); err != nil {
		r.sendErr = err
		return err
	}
	r.bytes += a.size
	st.mu.Lock()
	defer st.mu.Unlock()
	if r.Request.Decoupled && st.waiting+a.size > maxWaiting {
		a.drop()
		r.final = false
		r.sendErr = infer.Refusef(infer.ResourceExhausted, infer.ReasonSlowClient,
			"%sthe answers are not taken: %d bytes of them wait, the most is %d", r.Request.Prefix(), st.waiting+a.size, int64(maxWaiting))
		return r.sendErr
	}
	st.waiting += a.size
	st.turnLocked(r, a)
	return nil
}

// turnLocked lets an answer leave, when its turn comes.
func (st *inferStream) turnLocked(r *streamRequest, a streamAnswer) {
	if r.inLine && st.line.head != r {
		r.ready = append(r.ready, a)
		return
	}
	st.queueLocked(a)
}

// Done is infer.Sink's. What is to be said of an error is told and logged on a goroutine
// of its own.
func (r *streamRequest) Done(err error) infer.Flusher {
	if err == nil {
		err = r.sendErr
	}
	if err == nil && !r.answered && !r.Request.Decoupled {
		err = infer.Errorf(infer.Internal, "model '%s' gave no response", r.Request.Model)
	}
	if err != nil {
		go r.finish(err)
		return nil
	}
	r.finish(nil)
	return nil
}

// finish is the end of a request.
func (r *streamRequest) finish(err error) {
	st := r.st
	if r.Request.Trace != nil {
		r.traceReceived()
	}
	r.traceSending()
	if err != nil {
		st.tell(r, err)
	}
	a, ok := r.lastWord(err)
	st.s.count(codeOf(st.ctx, err))
	r.end = infer.End{Status: int(codeOf(st.ctx, err)), Err: err, Request: &r.Request, Received: r.size, Sent: r.bytes}
	st.s.pipeline.Close(&r.envelope, &r.end)
	r.release()
	if !ok {
		r.traceSent()
	}
	st.mu.Lock()
	if ok {
		a.last = r
		st.waiting += a.size
		st.turnLocked(r, a)
	}
	r.over = true
	st.live.remove(r)
	st.advanceLocked()
	var follower *streamRequest
	if st.tails[r.key] == r {
		delete(st.tails, r.key)
	} else {
		follower = r.follower
	}
	st.mu.Unlock()
	wake(st.room)
	wake(st.news)
	r.life.End(context.Canceled)
	if follower != nil {
		go follower.start()
	}
}

// tell tells of an error.
func (st *inferStream) tell(r *streamRequest, err error) {
	if st.s.failure != nil {
		st.s.failure(st.ctx, "ModelStreamInfer", &r.Request, err)
	}
}

// codeOf is the gRPC code that a request's error has.
func codeOf(ctx context.Context, err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	code := Code(infer.CodeOf(err))
	if code == codes.Canceled && (infer.ReasonOf(err) == infer.ReasonDeadline || overdue(ctx)) {
		code = codes.DeadlineExceeded
	}
	return code
}

// lastWord is what the client hears at the end besides the answers: an error, or that no
// answer follows, where it asked for that. An error of a request that reached its model
// names the model and is final, others have the request's id alone.
// Source: the original 2.51.
func (r *streamRequest) lastWord(err error) (streamAnswer, bool) {
	req := &r.Request
	switch {
	case err != nil && r.st.strict:
		return streamAnswer{fault: err}, true
	case err != nil:
		resp := &infer.Response{ID: req.ID}
		if req.Times.QueueStart != 0 && infer.ReasonOf(err) != infer.ReasonQueueFull {
			resp.Model, resp.Params = req.Model, withFinal(nil, true)
		}
		if errors.Is(err, context.Canceled) && r.st.ctx.Err() != nil {
			return streamAnswer{}, false // nobody is there
		}
		return r.st.s.faultOf(err.Error(), resp), true
	case r.emptyFinal && req.Decoupled && !r.final:
		a, err := r.st.s.answerOf(&infer.Response{ID: req.ID, Model: req.Model, Params: withFinal(nil, true)}, true)
		return a, err == nil
	}
	return streamAnswer{}, false
}
