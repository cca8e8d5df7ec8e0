package workers

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

const (
	// watchEvery is how often the requests of kept batches are looked at.
	watchEvery = 5 * time.Millisecond
	// openGrace is how long a backend may take to end a request that it was told to end.
	openGrace = 30 * time.Second
)

// keepWatch looks after kept batches: it tells backends that a request is cancelled or that
// its timeout has passed, and fails requests of which nothing is heard. There is one for a
// worker, with one goroutine, which rests while nothing is kept.
type keepWatch struct {
	silence time.Duration // longest time without an answer, of requests without a timeout
	wake    chan struct{} // one token: a batch was added

	mu      sync.Mutex
	batches map[*keptBatch]struct{} // guarded by mu

	seen []*keptBatch // the goroutine's
}

// watched is what keepWatch knows of a request. The batch's mu guards it.
type watched struct {
	tell     func(cause error) // nil: nobody is told
	heard    int64             // when it was kept, answered last, or passed its timeout; infer.Now
	deadline int64             // of its own timeout, until that has passed; 0: none
	expired  bool              // it has passed
	gone     int64             // since when nobody waits for it; 0: somebody does
	inferEnd int64             // when its phase "compute infer" ended; 0: it has not
}

func newKeepWatch(silence time.Duration) *keepWatch {
	return &keepWatch{silence: silence, wake: make(chan struct{}, 1), batches: map[*keptBatch]struct{}{}}
}

// start runs the goroutine; stop ends it.
func (w *keepWatch) start() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w.run(over)
	}()
	return func() {
		close(over)
		<-done
	}
}

func (w *keepWatch) run(over <-chan struct{}) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		if !w.look(infer.Now()) {
			t.Stop()
			select {
			case <-w.wake:
			case <-over:
				return
			}
			t.Reset(watchEvery)
		}
		select {
		case <-t.C:
		case <-over:
			return
		}
	}
}

func (w *keepWatch) add(k *keptBatch) {
	w.mu.Lock()
	w.batches[k] = struct{}{}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *keepWatch) remove(k *keptBatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.batches, k)
}

// look looks at all kept batches; false: there is none.
func (w *keepWatch) look(now int64) bool {
	w.mu.Lock()
	for k := range w.batches {
		w.seen = append(w.seen, k)
	}
	w.mu.Unlock()
	for _, k := range w.seen {
		if k.mu.TryLock() { // one that is answering is looked at the next time
			k.look(now, w.silence)
			k.mu.Unlock()
		}
	}
	n := len(w.seen)
	clear(w.seen)
	w.seen = w.seen[:0]
	return n > 0
}

// look looks at a batch's requests. The caller holds mu.
func (k *keptBatch) look(now int64, silence time.Duration) {
	gone := k.x.inst.transport.gone()
	for i := range k.watch {
		r, w := &k.x.requests[i], &k.watch[i]
		switch {
		case k.ended:
			return
		case r.answered:
			continue
		case w.gone == 0 && (gone || r.Cancelled()):
			w.gone = now
			k.tell(i, errCancelled(), true)
		case w.deadline > 0 && now >= w.deadline:
			w.deadline, w.expired, w.heard = 0, true, max(w.heard, now)
			k.tell(i, infer.Refusef(infer.Cancelled, infer.ReasonDeadline, "the request's timeout has passed"), false)
		}
		since, most := w.heard, silence
		switch {
		case w.gone > 0:
			since, most = w.gone, openGrace
		case w.deadline > 0:
			continue // its own timeout counts
		case w.expired:
			most = openGrace
		}
		if age := time.Duration(now - since); age >= most {
			k.abandon(i, age)
		}
	}
}

// tell calls who watches request i, on a goroutine that the worker waits for. The caller holds
// mu. last says that nothing else is told of it.
func (k *keptBatch) tell(i int, cause error, last bool) {
	inst, f := k.x.inst, k.watch[i].tell
	if last {
		k.watch[i].tell = nil
	}
	if f == nil {
		return
	}
	inst.worker.running.Go(func() {
		var err error // which is logged
		defer inst.recovered("watching a request", &err)
		f(cause)
	})
}

// abandon fails a request of which nothing was heard for too long. What its backend answers
// after that is dropped. The caller holds mu.
func (k *keptBatch) abandon(i int, age time.Duration) {
	r, inst := &k.x.requests[i], k.x.inst
	inst.worker.faults.Add(1)
	inst.log.Error("a backend kept a request open, and nothing was heard of it: it is failed", "request_id", r.ID(),
		"silent", age,
		"cancelled", k.watch[i].gone > 0)
	err := infer.Errorf(infer.Internal, "the model gave no answer for %v, and its request is failed",
		age.Round(time.Millisecond))
	k.tell(i, err, true)
	atomic.StoreUint32(&r.gone, 1)
	k.x.fail(i, err)
	r.lost = true
	k.flush()
}
