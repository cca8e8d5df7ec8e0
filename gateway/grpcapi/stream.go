package grpcapi

import (
	"context"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

const (
	// maxInFlight is how many requests of one stream are served at a time: more are not
	// read, so the client's window fills.
	maxInFlight = 128
	// stalled is how many bytes of answers may wait for the client before no further
	// request of the stream is read, and before answers are copied out of the memory that
	// others need too.
	stalled = 1 << 20
	// maxWaiting is how many bytes of answers may wait before a decoupled request whose
	// answers go on coming is ended.
	maxWaiting = 16 << 20
)

// strictKey is the metadata key by which a client asks that an error ends its stream.
// Source: reference A3.
const strictKey = "triton_grpc_error"

// inferStream is one call of ModelStreamInfer. Its handler waits for the end; one more
// goroutine reads, and while answers wait there is one that writes them.
type inferStream struct {
	s      *Service
	server grpc.ServerStream
	ctx    context.Context // the call's
	env    infer.Envelope
	strict bool          // an error ends the stream
	news   chan struct{} // a token: something that the handler or the reader waits for
	room   chan struct{} // a token: the same for the reader

	mu       sync.Mutex
	live     requestList                    // in flight
	line     lineup                         // of them, those whose answers keep an order
	tails    map[sequenceKey]*streamRequest // the last one of each sequence
	out      []streamAnswer                 // in the order in which they leave
	waiting  int64                          // bytes of answers that have not left
	writing  bool                           // a goroutine is at it
	readDone bool                           // nothing more will be read
	failed   error                          // ends the stream
	closed   bool                           // nothing more is sent
	received int64                          // bytes of requests
	sent     int64                          // bytes of answers that left
}

// sequenceKey tells sequences apart.
type sequenceKey struct {
	model string
	id    infer.Correlation
}

// ModelStreamInfer is a stream of inferences. Answers of ordinary models keep the order of
// their requests, those of decoupled models come as they are made, and errors of requests
// are answers too. Each request is a call of its own to the pipeline, within the stream's.
// Source: reference A3, ModelStreamInfer.
func (s *Service) ModelStreamInfer(server inference.GRPCInferenceService_ModelStreamInferServer) error {
	st := &inferStream{s: s, server: server, news: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	st.env.Method, st.env.Streaming, st.env.Carrier = "ModelStreamInfer", true, true
	ctx, err := s.open(server.Context(), &st.env, infer.ActionInference, "", "")
	st.ctx = ctx
	if err == nil {
		s.chooseCompression(server.Context())
		st.strict = st.env.Header != nil && strings.EqualFold(st.env.Header(strictKey), "true")
		err = st.serve()
	}
	if err != nil {
		err = s.failed(ctx, "ModelStreamInfer", nil, err)
	} else {
		s.count(codes.OK)
	}
	st.mu.Lock()
	end := infer.End{Err: err, Status: int(status.Code(err)), Received: st.received, Sent: st.sent}
	st.mu.Unlock()
	s.pipeline.Close(&st.env, &end)
	return err
}

// serve returns when the stream is over.
func (st *inferStream) serve() error {
	go st.read()
	stop, gone := st.s.stop, st.ctx.Done()
	for !st.over(stop == nil) {
		select {
		case <-st.news:
		case <-gone:
			st.abandon()
			gone = nil
		case <-stop:
			stop = nil
		}
	}
	return st.close()
}

// over says that nothing is left to be done: all that was asked is answered and written.
// A stream of a server that stops is over as soon as it has nothing in flight.
func (st *inferStream) over(stopping bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.writing:
		return false
	case st.closed:
		return true
	case len(st.out) > 0 || st.failed == nil && (!st.readDone && !stopping || st.live.n > 0):
		return false
	}
	if st.failed == nil && !st.readDone {
		st.failed = infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText)
	}
	st.closed = true
	return true
}

// abandon ends the stream of a client that has gone, or whose time is up.
func (st *inferStream) abandon() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.failed == nil {
		st.failed = context.Cause(st.ctx)
	}
	st.closed = true
}

// close ends what is in flight; its result is how the stream ended.
func (st *inferStream) close() error {
	reason := context.Canceled
	if st.ctx.Err() == context.DeadlineExceeded {
		reason = context.DeadlineExceeded
	}
	st.mu.Lock()
	lives := make([]*requestLife, 0, st.live.n)
	for r := st.live.head; r != nil; r = r.younger {
		lives = append(lives, &r.life)
	}
	st.dropLocked()
	err := st.failed
	st.mu.Unlock()
	for _, life := range lives {
		life.End(reason)
	}
	return err
}

// read takes requests until the client has no more, or the stream is over.
func (st *inferStream) read() {
	err := st.requests()
	st.mu.Lock()
	st.readDone = true
	if err != nil && err != io.EOF && st.failed == nil && st.ctx.Err() == nil {
		st.failed = err
	}
	st.mu.Unlock()
	wake(st.news)
}

func (st *inferStream) requests() error {
	for st.mayRead() {
		r := newStreamRequest(st)
		if err := st.receive(r); err != nil {
			return err
		}
		r.begin()
	}
	return st.ctx.Err()
}

// mayRead waits until there is room for a further request. False: the stream is over.
func (st *inferStream) mayRead() bool {
	for {
		st.mu.Lock()
		closed, room := st.closed || st.failed != nil, st.live.n < maxInFlight && st.waiting < stalled
		st.mu.Unlock()
		if closed || room {
			return !closed
		}
		select {
		case <-st.room:
		case <-st.ctx.Done():
			return false
		}
	}
}

// receive reads one request; what is wrong with the message is the request's, not the
// stream's.
func (st *inferStream) receive(r *streamRequest) error {
	if !st.s.standard {
		if err := st.server.RecvMsg(r); err != nil {
			return err
		}
	} else {
		m := &inference.ModelInferRequest{}
		if err := st.server.RecvMsg(m); err != nil {
			return err
		}
		r.decodeStandard(m)
	}
	st.mu.Lock()
	st.received += r.size
	st.mu.Unlock()
	return nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
