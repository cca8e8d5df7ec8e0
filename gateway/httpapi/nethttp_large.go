package httpapi

import (
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/tick"
)

// Large replies on net/http are written piece by piece, so that it shows whether their clients take them: while memory
// is scarce, those of clients that take nothing for listen.Patience are cut off, as gateway/h1 does.

// largeWrites are the large replies that are being written by one Server. The zero value has none.
type largeWrites struct {
	mu  sync.Mutex
	all map[*largeWrite]struct{} // guarded by mu; made with the first
}

// largeWrite is one of them.
type largeWrite struct {
	control *http.ResponseController
	size    int64        // bytes of memory that it holds
	moved   atomic.Int64 // when a piece was taken last, on the clock of infer.Now
	cut     atomic.Bool
}

func (l *largeWrites) add(w *largeWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*largeWrite]struct{}{}
	}
	l.all[w] = struct{}{}
}

func (l *largeWrites) remove(w *largeWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, w)
}

// stuck are those of which no piece was taken for patience.
func (l *largeWrites) stuck(now, patience int64) (found []*largeWrite) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.all {
		if now-w.moved.Load() >= patience {
			found = append(found, w)
		}
	}
	return found
}

// drop cuts off clients that take nothing, while memory is scarce, and says how many.
func (l *largeWrites) drop(now, patience int64, scarce func() bool) int {
	if !scarce() {
		return 0
	}
	return listen.DropUntaken(l.stuck(now, patience), func(w **largeWrite) listen.Untaken {
		return listen.Untaken{Since: (*w).moved.Load(), Size: (*w).size}
	}, scarce, func(w **largeWrite) bool {
		if now-(*w).moved.Load() < patience {
			return false
		}
		(*w).cut.Store(true)
		return (*w).control.SetWriteDeadline(time.Unix(1, 0)) == nil
	})
}

// errCutOff ends a reply that its client did not take while memory was scarce.
var errCutOff = errors.New("the client does not take the response, and memory is scarce")

// writeLarge writes the body of a large reply.
func (h *handler) writeLarge(w http.ResponseWriter, r *Reply) error {
	l := &largeWrite{control: http.NewResponseController(w), size: r.Length}
	l.moved.Store(infer.Now())
	h.large.add(l)
	defer h.large.remove(l)
	from := r.Source
	if from == nil {
		from = &chunkSource{r.Chunks}
		_ = l.control.SetWriteDeadline(deadline(h.timeout, r.Length, h.rate)) // a writer without deadlines still writes
	}
	for b := from.Next(); len(b) > 0; b = from.Next() {
		if r.Source != nil {
			_ = l.control.SetWriteDeadline(deadline(h.timeout, int64(len(b)), h.rate)) // likewise
		}
		if l.cut.Load() { // just before its deadline moved
			return errCutOff
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		l.moved.Store(infer.Now())
	}
	err := l.control.Flush()
	_ = l.control.SetWriteDeadline(time.Time{})
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// relieve drops replies that clients don't take while memory is scarce, once a second until done closes.
func (h *handler) relieve(done <-chan struct{}, scarce func() bool, log *slog.Logger) {
	t := tick.New(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			t.Next()
			if n := h.large.drop(infer.Now(), listen.Patience, scarce); n > 0 {
				log.Warn("HTTP (net/http): memory is scarce, clients that don't take their answers are cut off", "cut", n)
			}
		case <-done:
			return
		}
	}
}
