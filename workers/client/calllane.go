package client

import (
	"fmt"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// laneCalls takes inferences that models ask for through the local lane. But for answer its
// methods are the goroutine's that reads completions.
type laneCalls struct {
	*desk
	arena  *shm.Arena // of requests
	memory *peerMemory

	answers sync.Mutex
	held    map[uint64]heldAnswer // guarded by answers: by token
	next    uint64                // guarded by answers: the last token
	closed  bool                  // guarded by answers: nothing is held any more
}

// heldAnswer is what the worker may still read.
type heldAnswer struct {
	call   uint64
	part   bool          // not the final answer
	blocks [][]byte      // of the arena
	memory *infer.Buffer // under outputs that lie in the worker's own memory or in the arena
}

func newLaneCalls(d *desk, arena *shm.Arena, m *peerMemory) *laneCalls {
	return &laneCalls{desk: d, arena: arena, memory: m, held: map[uint64]heldAnswer{}}
}

// complete takes what a worker says of calls. An error says what it did wrong.
func (l *laneCalls) complete(c *shm.Completion) error {
	switch {
	case l == nil:
		return fmt.Errorf("a completion of kind %d, and the worker was not asked for calls", c.Kind)
	case c.Kind == shm.Called:
		return l.called(c)
	case c.Kind == shm.CallEnded:
		l.cancelCall(c.Batch)
		return nil
	case c.Kind == shm.AnswerTaken:
		return l.given(c.Token)
	}
	return fmt.Errorf("a completion of kind %d", c.Kind)
}

// laneCall is a call with what it usually needs, in one allocation.
type laneCall struct {
	open    openCall
	request infer.Request
	call    wire.Call
	buffer  infer.Buffer
	inputs  [4]infer.Tensor
	outputs [4]infer.RequestedOutput
}

// called begins the inference of a call.
func (l *laneCalls) called(c *shm.Completion) error {
	if c.Length > maxDescriptor {
		return fmt.Errorf("a call's descriptor has %d bytes, the most is %d", c.Length, maxDescriptor)
	}
	src, err := l.memory.responses.View(c.Offset, c.Length)
	if err != nil {
		return err
	}
	k := &laneCall{}
	if err := wire.DecodeCall(append([]byte(nil), src...), &k.call); err != nil { // a copy does not change while it is checked
		return err
	}
	k.request.Inputs = k.inputs[:0]
	size := int64(0)
	for i := range k.call.Inputs {
		in := &k.call.Inputs[i]
		if in.Data.Length > 0 && in.Data.Offset&wire.InAnswers == 0 {
			return fmt.Errorf("input '%s' of a call does not lie in the worker's memory", in.Name)
		}
		data, err := l.memory.view(wire.Segment{Offset: in.Data.Offset &^ wire.InAnswers, Length: in.Data.Length})
		if err != nil {
			return err
		}
		size += in.Data.Length
		k.request.Inputs = append(k.request.Inputs, infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Data: data})
	}
	l.memory.refs.Add(1)
	l.memory.held.Add(size)
	token := c.Token
	k.buffer.Reset(nil, func(*infer.Buffer) {
		l.memory.held.Add(-size)
		l.memory.release(token)
	})
	k.request.Memory = &k.buffer
	k.open.out = l
	return l.start(&k.open, &k.request, &k.call, k.outputs[:0])
}

// answer fits outlet. Where there is no memory for what resp has, that is its error; an answer
// without resp always goes.
func (l *laneCalls) answer(a *wire.Answer, resp *infer.Response) error {
	h := heldAnswer{call: a.ID, part: !a.Final}
	if resp != nil {
		h.memory = resp.Memory
		if err := l.place(a, resp, &h); err != nil {
			l.free(&h)
			return err
		}
	}
	src := wire.AppendAnswer(nil, a)
	block, err := l.arena.AllocSmall(int64(len(src)))
	if err != nil && resp != nil {
		l.free(&h)
		return err
	}
	at := shm.Answer{Call: a.ID, Length: -1}
	if err == nil {
		copy(block, src)
		h.blocks = append(h.blocks, block)
		at.Offset, _ = l.arena.Offset(block)
		at.Length = int64(len(src))
	}
	l.answers.Lock()
	defer l.answers.Unlock()
	l.next++
	at.Token = l.next
	if l.closed || len(l.held) >= maxHeld || !l.memory.lane.Answer(at) {
		l.free(&h)
		if !l.closed {
			l.lost(fmt.Errorf("the worker does not take the answers to its models' calls: %d wait", len(l.held)))
		}
		return nil
	}
	l.held[at.Token] = h
	return nil
}

// copiedAside is the size of outputs from which copying them takes long.
const copiedAside = 64 << 10

// large fits outlet.
func (l *laneCalls) large(resp *infer.Response) bool {
	n := 0
	for i := range resp.Outputs {
		if data := resp.Outputs[i].Data; !l.arena.Holds(data) && !l.memory.responses.Holds(data) {
			n += len(data)
		}
	}
	return n >= copiedAside
}

// place names where the outputs of resp lie, after copying what the worker can't read.
func (l *laneCalls) place(a *wire.Answer, resp *infer.Response, h *heldAnswer) error {
	for i := range resp.Outputs {
		t := &resp.Outputs[i]
		o := wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape, Data: wire.Segment{Length: int64(len(t.Data))}}
		off, ok := l.arena.Offset(t.Data)
		if !ok && len(t.Data) > 0 {
			if off, ok = l.memory.responses.Offset(t.Data); ok {
				off |= wire.InAnswers
			}
		}
		if !ok && len(t.Data) > 0 {
			block, err := l.arena.Alloc(int64(len(t.Data)))
			if err != nil {
				return err
			}
			copy(block, t.Data)
			h.blocks = append(h.blocks, block)
			off, _ = l.arena.Offset(block)
		}
		if len(t.Data) > 0 {
			o.Data.Offset = off
		}
		a.Outputs = append(a.Outputs, o)
	}
	return nil
}

// given takes back what a worker does not read any more.
func (l *laneCalls) given(token uint64) error {
	l.answers.Lock()
	h, ok := l.held[token]
	delete(l.held, token)
	l.answers.Unlock()
	if !ok {
		return fmt.Errorf("the worker gave back an answer %d, which it does not have", token)
	}
	l.free(&h)
	if h.part {
		l.taken(h.call)
	}
	return nil
}

func (l *laneCalls) free(h *heldAnswer) {
	for _, b := range h.blocks {
		l.arena.Free(b)
	}
	h.memory.Release()
}

// close gives back what the worker had when it was lost. No call is open any more.
func (l *laneCalls) close() {
	if l == nil {
		return
	}
	l.answers.Lock()
	defer l.answers.Unlock()
	l.closed = true
	for token, h := range l.held {
		l.free(&h)
		delete(l.held, token)
	}
}
