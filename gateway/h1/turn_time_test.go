package h1

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// worker is a handler that works for a time before it answers.
type worker struct {
	keeper
	inline chan string
}

func (w *worker) Serve(ctx context.Context, r *Request, a *Answer) (later bool) {
	if r.Inline {
		w.inline <- r.Path
	}
	if strings.Contains(r.Path, "/long") {
		for end := infer.Now() + int64(5*time.Millisecond); infer.Now() < end; {
		}
	}
	return w.keeper.Serve(ctx, r, a)
}

// After two requests that took long, as ones whose tokens had to be verified, a connection has a
// goroutine for many requests: others of the loop would wait for such ones.
func TestLongRequestsAreNotForTheLoop(t *testing.T) {
	for _, path := range []string{"/light/long/now", "/light/long/later"} {
		w := &worker{keeper: keeper{begun: make(chan kept, 64), plain: make(chan string, 200)}, inline: make(chan string, 64)}
		addr, s := startKeeper(t, w)
		c := dial(t, addr)
		r := bufio.NewReader(c)
		get := func(path string) {
			t.Helper()
			ask(t, c, path)
			if strings.HasSuffix(path, "/later") {
				h := <-w.begun
				h.answer([]byte("late"))
			}
			hear(t, r)
		}
		get("/light/now")
		waitParked(t, s, 1)
		s.turnTime = turnTime
		for range 2 {
			get(path)
			if got := <-w.inline; got != path {
				t.Fatalf("%s was served inline", got)
			}
		}
		get(path)
		get(path)
		select {
		case got := <-w.inline:
			t.Fatalf("%s was served inline again", got)
		default:
		}
		for range slowly {
			get("/light/now")
		}
		waitParked(t, s, 1)
	}
}
