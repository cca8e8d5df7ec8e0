package grpcapi

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// finalParam says in every answer of a stream whether it is its request's last.
// Source: reference A3, empty final responses.
const finalParam = "triton_final_response"

// streamAnswer is one message of a stream on its way out.
type streamAnswer struct {
	parts   mem.BufferSlice                     // owned
	message *inference.ModelStreamInferResponse // in place of parts, with StandardCodec
	size    int64
	fault   error          // ends the stream in place of a message
	last    *streamRequest // whose trace ends when this has left; nil: another message ends it
}

// drop lets go of an answer that will not be sent.
func (a *streamAnswer) drop() {
	a.parts.Free()
	if a.last != nil {
		a.last.traceSent()
	}
}

// withFinal is a response's parameters with finalParam.
func withFinal(params infer.Params, final bool) infer.Params {
	return append(params[:len(params):len(params)], infer.Param{Name: finalParam, Value: infer.Value{Kind: infer.KindBool, Bool: final}})
}

// answerOf encodes a response, whose memory it takes over. With whole nothing of it refers
// to that memory.
// Source: message ModelStreamInferResponse, proto/inference/grpc_service.proto.
func (s *Service) answerOf(r *infer.Response, whole bool) (streamAnswer, error) {
	if s.standard {
		m, err := toMessage(r)
		if err != nil {
			return streamAnswer{}, err
		}
		a := streamAnswer{message: &inference.ModelStreamInferResponse{InferResponse: m}}
		for _, raw := range m.RawOutputContents {
			a.size += int64(len(raw))
		}
		return a, nil
	}
	defer r.Memory.Release()
	if err := checkResponse(r); err != nil {
		return streamAnswer{}, err
	}
	n := headSize(r)
	total := n
	for i := range r.Outputs {
		if size := len(r.Outputs[i].Data); size >= byReference {
			total += size
		}
	}
	room := n + 1 + protowire.SizeVarint(uint64(total))
	if whole {
		room += total - n
	}
	b, memory, err := s.heap.Budget.Alloc(int64(room))
	if err != nil {
		return streamAnswer{}, err
	}
	defer memory.Release() // the pieces hold references of their own
	b = appendHead(appendLen(b, 2, total), r)
	if whole {
		for i := range r.Outputs {
			b = append(appendLen(b, 6, len(r.Outputs[i].Data)), r.Outputs[i].Data...)
		}
		return streamAnswer{parts: mem.BufferSlice{s.lend(b, memory)}, size: int64(len(b))}, nil
	}
	b, cuts := appendRaws(b, r, nil)
	parts, from := make(mem.BufferSlice, 0, 1+2*len(cuts)), 0
	for _, cut := range cuts {
		parts = append(parts, s.lend(b[from:cut.at:cut.at], memory), s.lend(r.Outputs[cut.output].Data, r.Memory))
		from = cut.at
	}
	if from < len(b) {
		parts = append(parts, s.lend(b[from:], memory))
	}
	return streamAnswer{parts: parts, size: int64(parts.Len())}, nil
}

// faultOf is the answer to a request that failed: r has what is said of it besides text.
func (s *Service) faultOf(text string, r *infer.Response) streamAnswer {
	if s.standard {
		m, err := toMessage(r)
		if err != nil { // its parameter is ours, and ids and names were decoded as UTF-8
			m = &inference.ModelInferResponse{Id: r.ID}
		}
		return streamAnswer{message: &inference.ModelStreamInferResponse{ErrorMessage: text, InferResponse: m}, size: int64(len(text))}
	}
	b := appendString(nil, 1, text)
	b = appendHead(appendLen(b, 2, headSize(r)), r)
	return streamAnswer{parts: mem.BufferSlice{mem.SliceBuffer(b)}, size: int64(len(b))}
}

// queueLocked lets answers leave as soon as the client takes them.
func (st *inferStream) queueLocked(answers ...streamAnswer) {
	for i := range answers {
		a := &answers[i]
		if a.fault != nil && st.failed == nil {
			st.failed = a.fault
		}
		if st.closed || st.failed != nil {
			st.waiting -= a.size
			a.drop()
			continue
		}
		st.out = append(st.out, *a)
	}
	if !st.writing && len(st.out) > 0 {
		st.writing = true
		go st.write()
	}
}

// dropLocked lets go of all answers.
func (st *inferStream) dropLocked() {
	for i := range st.out {
		st.out[i].drop()
	}
	st.out = nil
}

// write sends answers until none waits.
func (st *inferStream) write() {
	var batch []streamAnswer
	for {
		st.mu.Lock()
		if len(st.out) == 0 || st.closed {
			st.dropLocked()
			st.writing = false
			st.mu.Unlock()
			wake(st.news)
			return
		}
		batch, st.out = st.out, batch[:0]
		st.mu.Unlock()
		for i := range batch {
			st.send(&batch[i])
		}
		clear(batch)
	}
}

// send writes one answer. After a failure the stream is over, and what follows is dropped.
func (st *inferStream) send(a *streamAnswer) {
	st.mu.Lock()
	closed := st.closed
	st.mu.Unlock()
	if closed {
		a.drop()
		return
	}
	var err error
	if a.message != nil {
		err = st.server.SendMsg(a.message)
	} else {
		err = st.server.SendMsg(a)
	}
	if a.last != nil {
		a.last.traceSent()
	}
	st.mu.Lock()
	was := st.waiting
	st.waiting -= a.size
	st.sent += a.size
	if err != nil {
		st.closed = true
		if st.failed == nil {
			st.failed = err
		}
	}
	resumed := was >= stalled && st.waiting < stalled
	st.mu.Unlock()
	if resumed || err != nil {
		wake(st.room)
	}
	if err != nil {
		wake(st.news)
	}
}
