package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// attack is one way to harm a server.
type attack struct {
	name string
	tls  bool // makes sense with TLS alone
	own  bool // against our transports alone: what a library does there is not ours
	// run attacks until ctx ends. What the server does about it is noted; an error is that
	// it could not be tried.
	run func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error
}

// attacks are all of them.
func attacks() []attack {
	return slices.Concat(attacksOnHTTP(), attacksOnHTTP2(), attacksOnGRPC(), attacksOnTLS(), attacksOnRegions(), attacksWithAnswers())
}

// notes count what came of an attack.
type notes struct {
	mu     sync.Mutex
	counts map[string]int
	most   int // different things that are counted; 0: 12
}

func (n *notes) add(what string) { n.addN(what, 1) }

func (n *notes) addN(what string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.counts[what] == 0 && len(n.counts) >= cmp.Or(n.most, 12) {
		what = "other"
	}
	n.counts[what] += count
}

// String is the counts in the order of their names.
func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", n.counts[name], name))
	}
	return strings.Join(parts, ", ")
}

// many runs k copies of do again and again until ctx ends, and gives the first error that
// comes before.
func many(ctx context.Context, k int, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range k {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := do(ctx); err != nil && !over(ctx) {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// over says that ctx has ended or is about to: a dialer's clock is a little ahead of it.
func over(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(end) < 100*time.Millisecond
}

// wire is a raw connection that ends with its context.
type wire struct {
	net.Conn
	n    *notes
	stop func() bool
}

// open connects; what the server does to the connection is noted.
func (s *server) open(ctx context.Context, n *notes, address, protocol string) (*wire, error) {
	c, err := s.dial(ctx, address, protocol)
	if err != nil {
		return nil, err
	}
	n.add("connections")
	w := &wire{Conn: c, n: n}
	w.stop = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return w, nil
}

// end closes the connection and notes whether the server was first.
func (w *wire) end() {
	w.stop()
	_ = w.Close() // of no further use
}

// send writes; false: the server has had enough, or the time is over.
func (w *wire) send(b []byte) bool {
	_, err := w.Write(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		w.n.add("cut")
	}
	return err == nil
}

// drain reads all that the server says, away.
func (w *wire) drain() {
	if _, err := io.Copy(io.Discard, w.Conn); err == nil {
		w.n.add("ended by the server")
	}
}

// hang holds the connection until ctx ends or the server ends it.
func (w *wire) hang(ctx context.Context) {
	buf := make([]byte, 4096)
	for ctx.Err() == nil {
		if _, err := w.Read(buf); err != nil {
			if ctx.Err() == nil {
				w.n.add("ended by the server")
			}
			return
		}
	}
}
