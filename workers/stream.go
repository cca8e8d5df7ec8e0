package workers

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// queueLength is how many batches may wait for one instance. A gateway sends the next
// when it has the answer, so that one would do.
const queueLength = 8

// stream is one Execute call: batches of any instances of its connection. Its
// cancellations travel on it as well.
type stream struct {
	server grpc.BidiStreamingServer[worker.ExecuteRequest, worker.ExecuteResponse]

	mu      sync.Mutex
	pending map[uint64]*streamBatch // guarded by mu: by ID
	closed  bool                    // guarded by mu: nothing may be sent any more
	idle    chan struct{}           // guarded by mu: closed when nothing is pending, where somebody waits

	sending sync.Mutex // held over a send; taken before mu, never after
}

// streamBatch is a batch on its way through an instance.
type streamBatch struct {
	id      uint64
	stream  *stream
	batch   wire.Batch
	tensors [][]byte
	flags   []uint32
}

// queue is the transport of an instance whose gateway shares no memory.
type queue struct {
	limit int64 // bytes of one result

	mu     sync.Mutex
	ch     chan *streamBatch // sends are under mu
	closed bool              // guarded by mu

	heap   []byte // for outputs; used again by every batch
	used   int64
	wanted int64
}

func newQueue(limit int64) *queue {
	return &queue{limit: limit, ch: make(chan *streamBatch, queueLength)}
}

func (q *queue) put(b *streamBatch) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the model is being unloaded")
	}
	select {
	case q.ch <- b:
		return nil
	default:
		return infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "%d batches wait for the instance", queueLength)
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.ch)
	}
}

func (q *queue) receive(x *execution) error {
	b, ok := <-q.ch
	if !ok {
		return errStopped
	}
	x.source = b
	x.batch, b.batch = b.batch, x.batch
	x.flags = b.flags
	return nil
}

func (q *queue) view(x *execution, k int, s wire.Segment) ([]byte, error) {
	if k >= len(x.source.tensors) || int64(len(x.source.tensors[k])) != s.Length {
		return nil, infer.Errorf(infer.Internal, "segment %d of a batch has %d bytes, and no tensor of that size came with it", k, s.Length)
	}
	return x.source.tensors[k], nil
}

func (q *queue) alloc(x *execution, n int64) (*block, error) {
	if n > q.limit {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "%d bytes of outputs are more than the %d that a message may have", n, q.limit)
	}
	if x.kept != nil {
		return &block{mem: alignedBytes(n), refs: 1}, nil
	}
	at := roundUp(q.used)
	q.wanted += roundUp(n)
	if at+n > int64(len(q.heap)) {
		return &block{mem: alignedBytes(n), refs: 1}, nil
	}
	q.used = at + n
	return &block{mem: q.heap[at : at+n : at+n], refs: 1}, nil
}

func (q *queue) place(d *draft, _ *block, data []byte) wire.Segment {
	s := wire.Segment{Offset: d.size, Length: int64(len(data))}
	d.tensors = append(d.tensors, data)
	d.size += s.Length
	return s
}

func (q *queue) send(x *execution, d *draft) error {
	err := x.source.stream.send(&worker.ExecuteResponse{Result: wire.ResultMessage(&d.result), Tensors: d.tensors})
	if err == nil || d.result.More {
		return err
	}
	// The outputs were more than a message holds; if the stream itself has ended,
	// this fails too and nobody waits.
	x.inst.log.Error("a batch's result could not be sent", "error", err)
	failed := wire.Result{ID: x.batch.ID, Code: infer.Unavailable, Reason: infer.ReasonTooLarge,
		Err: "the outputs of the batch are too large to be sent"}
	_ = x.source.stream.send(&worker.ExecuteResponse{Result: wire.ResultMessage(&failed)})
	return nil
}

// keep gives x the memory for outputs, and the next batch another.
func (q *queue) keep(*execution) { q.heap, q.used, q.wanted = nil, 0, 0 }

// gone is what the flags of each batch say: its stream ends by itself.
func (*queue) gone() bool { return false }

func (q *queue) forget(x *execution, blocks []*block) {
	if x.kept != nil {
		return
	}
	for _, b := range blocks {
		q.wanted -= roundUp(int64(len(b.mem)))
	}
}

func (q *queue) end(x *execution) {
	if x.kept == nil {
		if q.wanted > int64(len(q.heap)) && q.wanted <= keptScratch {
			q.heap = alignedBytes(q.wanted)
		}
		q.used, q.wanted = 0, 0
	}
	x.source.stream.finish(x.source)
	x.source = nil
}

// errStreamEnded is a send to a gateway that has gone.
var errStreamEnded = errors.New("the gateway's stream has ended")

func (s *stream) send(r *worker.ExecuteResponse) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errStreamEnded
	}
	return s.server.Send(r)
}

func (s *stream) finish(b *streamBatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, b.id)
	if len(s.pending) == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// wait returns when no batch of the stream is in flight, or ctx ends.
func (s *stream) wait(ctx context.Context) {
	s.mu.Lock()
	if len(s.pending) == 0 {
		s.mu.Unlock()
		return
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	s.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// end makes sure that nothing is sent any more and flags what is in flight.
func (s *stream) end() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, b := range s.pending {
		for i := range b.flags {
			atomic.StoreUint32(&b.flags[i], 1)
		}
	}
}

// read takes batches and cancellations until the gateway sends no more.
func (s *stream) read(c *connection) error {
	for {
		r, err := s.server.Recv()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case r.GetCancel() != nil:
			s.cancel(r.GetCancel().GetBatch(), r.GetCancel().GetRequest())
		default:
			if err := s.submit(c, r); err != nil {
				return err
			}
		}
	}
}

func (s *stream) cancel(id uint64, request uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.pending[id]; b != nil && int64(request) < int64(len(b.flags)) {
		atomic.StoreUint32(&b.flags[request], 1)
	}
}

// submit queues a batch. Trouble with one batch is its result; an error ends the stream, since
// what is no batch, or has no ID of its own, has nothing to answer to.
func (s *stream) submit(c *connection, r *worker.ExecuteRequest) error {
	id := r.GetBatch().GetId()
	if id == 0 {
		return infer.Errorf(infer.InvalidArg, "a message has neither a batch with an id nor a cancellation")
	}
	b := &streamBatch{stream: s, id: id}
	var bad error
	b.tensors, bad = wire.ReadBatch(r.GetBatch(), r.GetTensors(), &b.batch)
	b.flags = make([]uint32, len(b.batch.Requests))
	s.mu.Lock()
	if s.pending[id] != nil {
		s.mu.Unlock()
		return infer.Errorf(infer.InvalidArg, "batch %d is in flight already", id)
	}
	s.pending[id] = b
	s.mu.Unlock()
	q, err := c.queueOf(r.GetBatch().GetHandle(), r.GetBatch().GetInstance())
	if bad != nil {
		err = bad
	}
	if err == nil {
		err = q.put(b)
	}
	if err == nil {
		return nil
	}
	res := wire.Result{ID: id, Code: infer.CodeOf(err), Reason: infer.ReasonOf(err), Err: textOf(err)}
	s.finish(b)
	return s.send(&worker.ExecuteResponse{Result: wire.ResultMessage(&res)})
}
