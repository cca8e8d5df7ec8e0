package repository

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// errOvertaken is in the chain of the error of a load that a later call has ended.
var errOvertaken = errors.New("was overtaken")

// overtaken is the error of such a load; by says what came.
func overtaken(name, by string) error {
	return infer.Errorf(infer.Cancelled, "load of model '%s' %w by %s", name, errOvertaken, by)
}

// wasOvertaken is overtaken's error where the load of ctx was ended with it, else nil.
func wasOvertaken(ctx context.Context) error {
	if err := context.Cause(ctx); errors.Is(err, errOvertaken) {
		return err
	}
	return nil
}

// pendingLoads are the loads that wait or are under way, so that an unload of their model, or a
// load of something else under its name, can end them.
type pendingLoads struct {
	mu  sync.Mutex
	all map[string][]*pendingLoad // mu; by the model's name, the oldest first
}

// pendingLoad is one of them. What stands under mu is pendingLoads'.
type pendingLoad struct {
	key  key
	any  bool // nothing is known yet of its namespace
	call *Override
	end  context.CancelCauseFunc

	read bool // mu; the folder was looked at
	look look // mu; what was seen
}

// add takes a load in, until remove. The context is the load's.
func (p *pendingLoads) add(ctx context.Context, l *pendingLoad) context.Context {
	ctx, l.end = context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[l.key.name] = append(p.all[l.key.name], l)
	return ctx
}

func (p *pendingLoads) remove(l *pendingLoad) {
	l.end(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	name := l.key.name
	p.all[name] = slices.DeleteFunc(p.all[name], func(o *pendingLoad) bool { return o == l })
	if len(p.all[name]) == 0 {
		delete(p.all, name)
	}
}

// saw notes what the folder is that a load reads.
func (p *pendingLoads) saw(l *pendingLoad, seen look) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.read, l.look = true, seen
}

// has says that somebody loads the model.
func (p *pendingLoads) has(k key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.all[k.name], func(l *pendingLoad) bool { return l.any || l.key == k })
}

// covers says that a load of the model is under way that reads, or has read, its folder as it is.
func (p *pendingLoads) covers(k key, now look) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.all[k.name], func(l *pendingLoad) bool {
		return l.key == k && (!l.read || l.look.same(now))
	})
}

// unloading ends all loads of a model.
func (p *pendingLoads) unloading(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.all[k.name] {
		if l.any || l.key == k {
			l.end(overtaken(k.name, "an unload"))
		}
	}
}

// loading ends the loads that came before l and would load something else. Those which would
// load the same are left alone: a client that gave up waiting may ask again.
func (p *pendingLoads) loading(l *pendingLoad, dir string) {
	p.mu.Lock()
	before := slices.Clone(p.all[l.key.name])
	p.mu.Unlock()
	before = before[:slices.Index(before, l)]
	before = slices.DeleteFunc(before, func(o *pendingLoad) bool { return o.any || o.key != l.key })
	if len(before) == 0 {
		return
	}
	var now look
	var err error
	if l.call.empty() {
		now, err = lookAt(dir)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range before {
		if !o.call.same(l.call) || l.call.empty() && o.read && (err != nil || !o.look.same(now)) {
			o.end(overtaken(l.key.name, "a later load of something else"))
		}
	}
}
