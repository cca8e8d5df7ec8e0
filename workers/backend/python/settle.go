package python

import (
	"fmt"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// What RESULT says of a request.
const (
	statusOpen = iota
	statusAnswered
	statusRescheduled
)

// settle deals with RESULT: it answers, repeats and keeps requests. An error is that of the requests
// without an answer, of which the process then knows none.
func (in *instance) settle(x *batch, f channel.Frame) error {
	r := x.run
	d := channel.NewDecoder(f.Body, in.model.names)
	events, ending := d.U64(), d.U8()
	if d.Err() == nil {
		r.waitSeen(events)
		in.model.metrics.settled()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resulted = true
	if err := x.deliverEarly(); err != nil {
		return err
	}
	if ending == 1 {
		message, trace := d.String(), d.String()
		if d.Err() != nil {
			return r.corrupt("%v", d.Err())
		}
		if trace != "" {
			r.log.Error("the model failed", "traceback", trace)
		}
		return infer.Errorf(infer.Internal, "Failed to process the request(s) for model '%s', message: %s", in.name,
			message)
	}
	n := int(d.U32())
	if d.Err() == nil && (ending != 0 || n != len(x.requests)) {
		return r.corrupt("a result of %d requests, want %d", n, len(x.requests))
	}
	used := int64(0)
	err := in.settleAll(x, &d, &used)
	in.grant = nextGrant(in.grant, used)
	for i := range in.answers {
		r.used(&in.answers[i])
	}
	in.answers = in.answers[:0]
	if x.grant.Area == channel.InOurs && x.grant.Length > 0 {
		r.channel.Exchange.Free(x.grant)
	}
	x.grant, x.room = channel.Segment{}, nil
	if err != nil {
		return err
	}
	switch {
	case x.left == 0:
		x.free()
	case x.open == nil:
		return x.keep()
	}
	return nil
}

// settleAll deals with each request of a RESULT. used is how many bytes of answers did not
// fit into the frame. The caller holds the batch's mu.
func (in *instance) settleAll(x *batch, d *channel.Decoder, used *int64) error {
	for i := range x.requests {
		q := &x.requests[i]
		switch status := d.U8(); {
		case d.Err() != nil:
			return x.run.corrupt("%v", d.Err())
		case status == statusOpen:
		case q.closed:
			return x.run.corrupt("an answer to request %d, which was answered", i)
		case status == statusAnswered:
			a := in.nextAnswer()
			if d.Response(a); d.Err() != nil {
				return x.run.corrupt("%v", d.Err())
			}
			for k := range a.Outputs {
				if s := a.Outputs[k].Segment; s.Area != channel.InFrame {
					*used += (int64(min(s.Length, exchangeSize)) + grantAlign) &^ (grantAlign - 1)
				}
			}
			if err := x.deliver(q, partFinal|partAnswer, a); err != nil {
				return err
			}
		case status == statusRescheduled:
			if err := x.repeat(q); err != nil {
				return err
			}
		default:
			return x.run.corrupt("request %d has the status %d", i, status)
		}
	}
	return nil
}

// nextAnswer is an answer to decode into, whose memory is used again.
func (in *instance) nextAnswer() *channel.Response {
	n := len(in.answers)
	if n < cap(in.answers) {
		in.answers = in.answers[:n+1]
	} else {
		in.answers = append(in.answers, channel.Response{})
	}
	a := &in.answers[n]
	a.Outputs = a.Outputs[:0]
	return a
}

// repeat has a request executed again. The caller holds mu.
func (x *batch) repeat(q *request) error {
	var err error
	switch {
	case q.failed:
	case x.open != nil:
		err = x.fail(q, infer.Errorf(infer.Internal,
			"model '%s' rescheduled a request, which models with iterative_sequence alone may do",
			x.run.model().spec.Name))
	default:
		if err = x.b.Repeat(q.index, nil); err != nil {
			err = x.fail(q, err)
		}
	}
	x.close(q)
	return err
}

// deliverEarly gives the answers that came before the batch's result. The caller holds mu.
func (x *batch) deliverEarly() error {
	for i := range x.early {
		e := &x.early[i]
		var err error
		switch {
		case e.request.closed:
		case e.flags == partDrop:
			err = x.fail(e.request, noAnswer())
			x.close(e.request)
		default:
			err = x.deliver(e.request, e.flags, &e.answer)
		}
		x.run.used(&e.answer)
		if err != nil {
			return err
		}
	}
	clear(x.early)
	x.early = x.early[:0]
	return nil
}

// corrupt kills the process for what it wrote, and is the failure of its requests. It doesn't
// wait for the end.
func (r *run) corrupt(format string, args ...any) error {
	r.kill(fmt.Errorf("%w: "+format, append([]any{channel.ErrCorrupt}, args...)...))
	return r.lost()
}

// nextGrant is how much memory for answers the next batch has with it: as much as the last ones
// needed, and slowly less.
func nextGrant(grant, used int64) int64 {
	if grant -= grant / 8; max(used, grant) < leastGrant {
		return 0
	}
	return max(used, grant)
}

const (
	leastGrant = 4096 // bytes, less than what goes into no frame
	grantAlign = 64   // of each tensor in a grant
)
