package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// ledger is a store that grants everything, and keeps how much it was asked at one time.
type ledger struct {
	mu     sync.Mutex
	most   int
	claims map[string]int
	broken atomic.Bool
}

func (s *ledger) exchange(_ context.Context, qs []question, answers []answer) error {
	if s.broken.Load() {
		return errors.New("broken")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = max(s.most, len(qs))
	for i := range qs {
		answers[i] = answer{got: qs[i].want, key: 1}
		s.claims[qs[i].key]++
	}
	return nil
}

func (s *ledger) close() error { return nil }

// What is renewed is asked for in parts: an exchange with all claims of a busy gateway
// would take longer than an exchange may, and Redis count as gone. Of parts that follow a
// failed one nothing stays behind.
func TestClaimsAreRenewedInParts(t *testing.T) {
	l := limits(t, "rules: [{name: c, each: principal, concurrency: 4}]", nil)
	s := &ledger{claims: map[string]int{}}
	l.table.link = newLink(t.Context(), l, s, "", time.Second)
	l.table.link.log = slog.New(slog.DiscardHandler)
	t.Cleanup(func() {
		if err := l.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	const calls = 5 * maxAtOnce
	for i := range calls {
		env := &infer.Envelope{Action: infer.ActionInference, Model: "m", Principal: &infer.Principal{Name: fmt.Sprint(i)}}
		if err := l.Open(t.Context(), env); err != nil {
			t.Fatal(err)
		}
	}
	renewed := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := 0
		for _, times := range s.claims {
			if times > 1 {
				n++
			}
		}
		return n == calls
	}
	within(t, 10*time.Second, "all are renewed", renewed)
	s.mu.Lock()
	if s.most > maxAtOnce {
		t.Errorf("%d claims in one exchange, want at most %d", s.most, maxAtOnce)
	}
	clear(s.claims)
	s.mu.Unlock()
	s.broken.Store(true)
	within(t, 10*time.Second, "gone", func() bool { return !l.Figures().Connected })
	s.broken.Store(false)
	within(t, 10*time.Second, "all are renewed again", renewed)
}
