package workers

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
)

// callLane carries calls and their answers through shared memory. Of those who wait for
// answers one reads the ring and hands the others theirs, so that a single caller wakes once
// and no goroutine stands between.
type callLane struct{ *lane }

// callLane is the connection's, nil where it shares no memory.
func (c *connection) callLane() *callLane {
	if !c.laneOn.Load() {
		return nil
	}
	return &callLane{c.lane}
}

// post sends a call, whose inputs are copied into the response arena.
func (l *callLane) post(ctx context.Context, c *calls, w *wire.Call, inputs []infer.Tensor) error {
	over := func() bool { return ctx.Err() != nil }
	size := int64(0)
	for i := range inputs {
		size += roundUp(int64(len(inputs[i].Data)))
	}
	var blocks []*block
	if size > 0 {
		mem, err := l.await(size, l.Responses.Alloc, over)
		if err != nil {
			return err
		}
		blocks = []*block{{mem: mem, refs: 1}}
		at, _ := l.Responses.Offset(mem)
		rest := mem
		for i := range inputs {
			t := &inputs[i]
			n := int64(copy(rest, t.Data))
			w.Inputs = append(w.Inputs, wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape,
				Data: wire.Segment{Offset: wire.InAnswers | at, Length: n}})
			at, rest = at+roundUp(n), rest[roundUp(n):]
		}
	} else {
		for i := range inputs {
			t := &inputs[i]
			w.Inputs = append(w.Inputs, wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: t.Shape})
		}
	}
	defer l.drop(blocks)
	src := wire.AppendCall(nil, w)
	mem, err := l.await(int64(len(src)), l.Responses.AllocSmall, over)
	if err != nil {
		return err
	}
	copy(mem, src)
	off, _ := l.Responses.Offset(mem)
	if err := l.Lane.Complete(shm.Completion{Kind: shm.Called, Batch: w.ID, Offset: off, Length: int64(len(mem)), Token: l.keep(mem, blocks, nil)}); err != nil {
		c.end()
		return errGatewayGone
	}
	return nil
}

func (l *callLane) drop(blocks []*block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range blocks {
		l.dropLocked(b)
	}
}

// hear hands out answers until k has one, or ctx ends. An error is that there will be none.
func (l *callLane) hear(ctx context.Context, c *calls, k *openCall) error {
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, l.Lane.StirAnswers)()
	}
	var buf [16]shm.Answer
	for len(k.answers) == 0 && ctx.Err() == nil {
		n, err := l.Lane.Answers(buf[:])
		if err != nil {
			c.connection.corrupt(err)
			return err
		}
		for _, a := range buf[:n] {
			wanted, err := c.hand(a.Call, callAnswer{offset: a.Offset, length: a.Length, token: a.Token})
			if err != nil {
				c.connection.corrupt(err)
				return err
			}
			if !wanted && a.Length >= 0 {
				l.taken(a.Token, false)
			}
		}
		if n == 0 {
			if err := l.Lane.WaitAnswer(func() bool { return ctx.Err() != nil }); err != nil {
				return err
			}
		}
	}
	return nil
}

// decode reads an answer's descriptor.
func (l *callLane) decode(a *callAnswer, w *wire.Answer) error {
	src, err := l.Requests.View(a.offset, a.length)
	if err != nil {
		return err
	}
	return wire.DecodeAnswer(src, w)
}

func (l *callLane) view(s wire.Segment) ([]byte, error) {
	if s.Offset&wire.InAnswers != 0 {
		return l.Responses.View(s.Offset&^wire.InAnswers, s.Length)
	}
	return l.Requests.View(s.Offset, s.Length)
}

// cancel and taken need no error: ErrClosed says that the gateway has gone.
func (l *callLane) cancel(id uint64) {
	_ = l.Lane.Complete(shm.Completion{Kind: shm.CallEnded, Batch: id})
}

// taken gives an answer back; quietly where a result of the batch follows, which the gateway is
// woken for.
func (l *callLane) taken(token uint64, quietly bool) {
	c := shm.Completion{Kind: shm.AnswerTaken, Token: token}
	if quietly {
		_ = l.Lane.CompleteQuietly(c)
		return
	}
	_ = l.Lane.Complete(c)
}
