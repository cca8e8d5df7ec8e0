package repository

import (
	"cmp"
	"context"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// turns lets the loads and unloads of one model follow one another. An ensemble's load
// takes the turns of its steps while it has its own; so that two of them never wait for
// each other, ensembles take one turn together (the key without a name) before that.
type turns struct {
	mu  sync.Mutex
	all map[key]*turn // mu; those that somebody has or waits for
}

type turn struct {
	token chan struct{}
	users int // under turns.mu
}

// take waits for a model's turn until ctx ends; the func gives it back.
func (t *turns) take(ctx context.Context, k key) (func(), error) {
	t.mu.Lock()
	one := t.all[k]
	if one == nil {
		one = &turn{token: make(chan struct{}, 1)}
		t.all[k] = one
	}
	one.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(t.all, k)
		}
	}
	select {
	case one.token <- struct{}{}:
		return func() { <-one.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, infer.Errorf(infer.Cancelled, "loading was stopped: %w", context.Cause(ctx))
	}
}

func compareKeys(a, b key) int {
	return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.namespace, b.namespace))
}
