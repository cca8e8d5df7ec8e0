package sequence

import (
	fifo "container/list"
	"errors"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// lost are the sequences whose state was lost with its worker: until they begin anew their
// requests hear that, and not that they never began. It is plain state; the zero value is
// empty.
type lost struct {
	all   map[key]*fifo.Element
	order fifo.List // of lostSequence; the one that is forgotten first is in front
	fresh int       // at the end of order: their time is not known yet
}

// lostSequence is one of them.
type lostSequence struct {
	key   key
	until int64
}

const (
	// lostLife is the shortest time that a lost sequence is remembered after its last request: a
	// worker takes longer to start than many models let a sequence be idle.
	lostLife = int64(time.Minute)
	// maxLost bounds the sequences that are remembered, of a model version; the oldest are
	// forgotten first.
	maxLost = limit
)

// add notes a loss. When it was, stamp says.
func (l *lost) add(k key) {
	if l.all == nil {
		l.all = map[key]*fifo.Element{}
	}
	l.remove(k)
	if len(l.all) >= maxLost {
		l.remove(l.order.Front().Value.(lostSequence).key)
	}
	l.all[k] = l.order.PushBack(lostSequence{key: k})
	l.fresh++
}

// remove forgets a sequence: it begins anew.
func (l *lost) remove(k key) {
	e := l.all[k]
	if e == nil {
		return
	}
	delete(l.all, k)
	if l.order.Remove(e).(lostSequence).until == 0 {
		l.fresh--
	}
}

// stamp forgets what is over, and counts the time of new losses from now; idle is the
// model's. With an idle time of 0 nothing is over.
func (l *lost) stamp(now, idle int64) {
	if len(l.all) == 0 {
		return
	}
	for e := l.order.Front(); e != nil && idle > 0; e = l.order.Front() {
		s := e.Value.(lostSequence)
		if s.until == 0 || now < s.until {
			break
		}
		l.remove(s.key)
	}
	for e := l.order.Back(); l.fresh > 0; e = e.Prev() {
		e.Value = lostSequence{key: e.Value.(lostSequence).key, until: now + max(idle, lostLife)}
		l.fresh--
	}
}

// has says that a sequence was lost, and counts its time anew.
func (l *lost) has(k key, now, idle int64) bool {
	l.stamp(now, idle)
	e := l.all[k]
	if e == nil {
		return false
	}
	e.Value = lostSequence{key: k, until: now + max(idle, lostLife)}
	l.order.MoveToBack(e)
	return true
}

// admitLost refuses a request that would continue a lost sequence; s is the living sequence of
// its ID, or nil.
func (c *Core) admitLost(e *queue.Entry, s *sequence) error {
	if s != nil || len(c.lost.all) == 0 {
		return nil
	}
	r := c.request(e)
	if k := c.keyOf(r); !r.SequenceStart && c.lost.has(k, e.At, c.rules.idle) {
		return errLost(c.model, k.id)
	}
	return nil
}

// noteLost notes that a sequence was lost with its worker, unless a newer one has its ID. It
// comes before the sequence's end.
func (c *Core) noteLost(s *sequence) {
	if newer := c.live[s.key]; !c.iterative && (newer == nil || newer == s) {
		c.lost.add(s.key)
	}
}

// fateOfLost is what the requests of a sequence hear that wait when it is lost. Of an iterative one,
// which is a single request, nothing but that is lost.
func (c *Core) fateOfLost(s *sequence) error {
	if c.iterative {
		return infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost,
			"sequence %s of model '%s' has ended: its state was lost with its worker", name(s.key.id), c.model)
	}
	return lossOf(c.model, s.key.id)
}

// loss is a refusal of a request under which its sequence was lost: a fault of the server, as the chain says. That a
// later one comes in vain is none.
type loss struct{ error }

// Unwrap gives the cause.
func (loss) Unwrap() error { return infer.ErrWorkerLost }

// lossOf is errLost of a request under which the sequence was lost.
func lossOf(model string, id infer.Correlation) error {
	return &infer.Error{Code: infer.Unavailable, Reason: infer.ReasonSequenceLost, Err: loss{errLost(model, id)}}
}

func errLost(model string, id infer.Correlation) error {
	return infer.Refusef(infer.Unavailable, infer.ReasonSequenceLost,
		"sequence %s of model '%s' has ended: its state was lost with its worker; begin a new one with the START flag", name(id), model)
}

// outcome is the error of a request that was in a batch when its worker ended: with it its
// sequence was lost.
func (s *Scheduler) outcome(req *infer.Request, err error) error {
	if err == nil || s.cfg.durable() || s.cfg.Iterative || !errors.Is(err, infer.ErrWorkerLost) {
		return err
	}
	return lossOf(s.cfg.Model.Name, req.Correlation)
}
