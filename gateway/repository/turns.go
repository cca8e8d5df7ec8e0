package repository

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// turns lets the loads and unloads of one model follow one another, in the order in which they
// came. An ensemble's load takes the turns of its steps while it has its own. Where loads of
// ensembles would so wait for each other, the last one to wait is refused.
type turns struct {
	mu  sync.Mutex
	all map[key]*turn // mu; those that somebody has
}

// turn is one model's; all of it is under turns.mu.
type turn struct {
	holder *chain
	queue  []*turnWait // the oldest first
}

// turnWait is somebody who waits for a turn.
type turnWait struct {
	chain *chain
	ready chan struct{} // closed when the turn is the chain's
}

// chain is a load with those of the steps that it begins. It waits for one turn at a time.
type chain struct {
	waits *turn // under turns.mu; nil: it waits for none
}

// take waits for a model's turn until ctx ends; give gives it back.
func (t *turns) take(ctx context.Context, c *chain, k key) (give func(), err error) {
	t.mu.Lock()
	one := t.all[k]
	if one == nil {
		t.all[k] = &turn{holder: c}
		t.mu.Unlock()
		return func() { t.give(k) }, nil
	}
	if one.circle(c) {
		t.mu.Unlock()
		return nil, infer.Errorf(infer.InvalidArg, "model '%s' is being loaded by an ensemble that waits for this load", k.name)
	}
	w := &turnWait{chain: c, ready: make(chan struct{})}
	one.queue = append(one.queue, w)
	c.waits = one
	t.mu.Unlock()
	select {
	case <-w.ready:
		return func() { t.give(k) }, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(one.queue, w)
	if at >= 0 {
		one.queue, c.waits = slices.Delete(one.queue, at, at+1), nil
	}
	t.mu.Unlock()
	if at < 0 { // it came at the same moment
		t.give(k)
	}
	return nil, stopped(ctx)
}

// circle says that the turn's holder waits, over others, for a turn that c has.
func (t *turn) circle(c *chain) bool {
	for t != nil {
		if t.holder == c {
			return true
		}
		t = t.holder.waits
	}
	return false
}

func (t *turns) give(k key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.all[k]
	if len(one.queue) == 0 {
		delete(t.all, k)
		return
	}
	next := one.queue[0]
	one.queue = one.queue[1:]
	one.holder, next.chain.waits = next.chain, nil
	close(next.ready)
}

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.namespace, b.namespace))
}
