package client

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/wire"
)

// streamLink is the link to a worker with which no memory is shared: one Execute
// stream for all of its instances.
type streamLink struct {
	stream workerpb.Worker_ExecuteClient
	budget *infer.Budget // of the heap memory of results; nil: none
	wake   chan struct{} // one token: the queue is not empty

	mu       sync.Mutex
	queue    []*workerpb.ExecuteRequest // guarded by mu; as long as there are instances, and cancellations
	inFlight map[uint64]*executor       // guarded by mu: by batch ID
}

func newStreamLink(s workerpb.Worker_ExecuteClient, budget *infer.Budget) *streamLink {
	return &streamLink{stream: s, budget: budget, wake: make(chan struct{}, 1), inFlight: map[uint64]*executor{}}
}

func (l *streamLink) post(e *executor) error {
	b := e.current
	m := &workerpb.ExecuteRequest{}
	var off int64
	for i := range b.Inputs {
		d := &e.batch.Inputs[i]
		for k, s := range b.Inputs[i].Segments {
			if places := b.Inputs[i].Places; places != nil && !places[k].IsZero() {
				if places[k].IsResident() {
					return infer.Errorf(infer.Internal, "a tensor lies in the device memory of another worker")
				}
				d.Segments = append(d.Segments, segmentOf(places[k]))
				continue
			}
			d.Segments = append(d.Segments, wire.Segment{Offset: off, Length: int64(len(s))})
			off += int64(len(s))
			m.Tensors = append(m.Tensors, s) // unchanged until the final result
		}
	}
	m.Batch = wire.BatchMessage(&e.batch, e.handle, e.index)
	l.mu.Lock()
	_, twice := l.inFlight[b.ID]
	if !twice {
		l.inFlight[b.ID] = e
		l.queue = append(l.queue, m)
	}
	l.mu.Unlock()
	if twice {
		return infer.Errorf(infer.Internal, "batch %d is in flight twice", b.ID)
	}
	l.signal()
	return nil
}

func (l *streamLink) cancel(batch uint64, _ []uint32, i int) {
	l.mu.Lock()
	l.queue = append(l.queue, &workerpb.ExecuteRequest{Cancel: &workerpb.Cancel{Batch: batch, Request: uint32(i)}})
	l.mu.Unlock()
	l.signal()
}

func (l *streamLink) forget(batch uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inFlight, batch)
}

func (l *streamLink) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// send writes the queue until the stream ends.
func (l *streamLink) send() error {
	var batch []*workerpb.ExecuteRequest
	for {
		select {
		case <-l.wake:
		case <-l.stream.Context().Done():
			return l.stream.Context().Err()
		}
		l.mu.Lock()
		batch, l.queue = l.queue, batch[:0]
		l.mu.Unlock()
		for i, m := range batch {
			if err := l.stream.Send(m); err != nil {
				return fmt.Errorf("send a batch: %w", err)
			}
			batch[i] = nil
		}
	}
}

// receive reads results until the stream ends or the worker breaks it.
func (l *streamLink) receive() error {
	for {
		m, err := l.stream.Recv()
		if err != nil {
			return fmt.Errorf("receive a result: %w", err)
		}
		if err := l.complete(m); err != nil {
			return err
		}
	}
}

func (l *streamLink) complete(m *workerpb.ExecuteResponse) error {
	id := m.GetResult().GetBatch()
	l.mu.Lock()
	e := l.inFlight[id]
	l.mu.Unlock()
	if e == nil {
		return fmt.Errorf("a result came for batch %d, which is not in flight", id)
	}
	b, done, o := e.find(id)
	if b == nil {
		return fmt.Errorf("a result came for batch %d, which its instance does not have", id)
	}
	if err := wire.ReadResult(m.GetResult(), m.Tensors, &e.result); err != nil {
		return err
	}
	if err := e.check(b, done, o); err != nil {
		return err
	}
	e.endAnswered(&e.result)
	r := &received{}
	if err := r.setResult(&e.result, b, pieces(m.Tensors)); err != nil {
		return err
	}
	l.count(r)
	if r.result.More {
		_, err := e.part(b, o, &r.result)
		return err
	}
	l.forget(id)
	e.finish(b, &r.result)
	return nil
}

// count counts a result in the budget until its memory is released. One that ends its batch gives way to an error
// when the budget is used up. A part of a result is counted all the same: others follow it, to the same requests.
func (l *streamLink) count(r *received) {
	if l.budget == nil || r.size < infer.CountFrom {
		return
	}
	if r.result.More {
		l.budget.Force(r.size)
	} else if err := l.budget.Take(r.size); err != nil {
		r.result = infer.Result{Err: err, Compute: r.result.Compute}
		return
	}
	r.budget = l.budget
	r.buffer.Reset(nil, freeCounted)
	r.result.Memory = &r.buffer
}

// freeCounted gives back what count took.
func freeCounted(b *infer.Buffer) {
	r := (*received)(unsafe.Pointer(b)) // whose first field it is
	r.budget.Give(r.size)
}

var errPiece = errors.New("a tensor lies outside the bytes that came with its result")

// pieces are tensors as they came; segments count from the start of the first.
type pieces [][]byte

func (p pieces) view(s wire.Segment) ([]byte, error) {
	if s.Length == 0 {
		return []byte{}, nil
	}
	off := s.Offset
	for _, b := range p {
		if n := int64(len(b)); off >= n {
			off -= n
			continue
		}
		if off < 0 || s.Length > int64(len(b))-off {
			return nil, errPiece
		}
		return b[off : off+s.Length : off+s.Length], nil
	}
	return nil, errPiece
}
