package drive

import "github.com/sluice-serve/sluice/infer"

// news is what an event is to tell once the lock is free.
type news struct {
	posts *batch
	late  []*item // started, and failed while the lock was held; a reference each
	delta int     // of the waiting ones
	item  *item   // that was being queued
	had   bool    // it was queued: it hears of a fault as all that wait do
	whole bool    // it ended without a panic; false: it may have, too
	fault error   // the panic that ended the event
	bugs  []error // others, for the log
	turn  func()  // is to be told that what Fault says has changed; nil: it hasn't
}

// unlock ends every event: it gives the lock back and takes out what the event has formed.
// It must be deferred itself, as the panic of an event ends here.
func (d *Driver) unlock(n *news) {
	if !n.whole {
		if v := recover(); v != nil {
			n.fault = infer.Recovered(v)
			d.renewLocked(n)
		}
	}
	n.posts, d.forming = d.forming.first, forming{}
	if d.late != nil {
		n.late, d.late = d.late, nil
	}
	if d.bugs != nil {
		n.bugs, d.bugs = d.bugs, nil
	}
	if d.broken.turned {
		n.turn, d.broken.turned = d.broken.changed, false
	}
	n.delta = d.waiting.n - d.told
	d.told = d.waiting.n
	d.mu.Unlock()
}

// carry carries an event's news out: batches first.
func (d *Driver) carry(n *news) {
	d.post(n.posts)
	if n.delta != 0 {
		d.queued(n.delta)
	}
	if n.late != nil {
		d.tell(n.late)
	}
	d.carryRest(n)
}

// carryRest carries out what few events have to tell.
func (d *Driver) carryRest(n *news) {
	if n.met() {
		d.logBugs(n)
	}
	if n.turn != nil {
		d.turn(n.turn)
	}
}

// met says that the event met a panic.
func (n *news) met() bool { return n.fault != nil || n.bugs != nil }

// queued tells the observer how many more wait. What it doesn't take it is told at once again,
// with what came meanwhile, and then with the next event.
func (d *Driver) queued(delta int) {
	if d.deps.Observer == nil || d.tellQueued(delta) {
		return
	}
	if delta = d.untold(delta); delta != 0 && !d.tellQueued(delta) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told -= delta
	}
}

func (d *Driver) tellQueued(delta int) (told bool) {
	defer d.caught("an observer met a fault")
	d.deps.Observer.Queued(delta)
	return true
}

// untold is what is to be told now that a difference wasn't.
func (d *Driver) untold(delta int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	delta += d.waiting.n - d.told
	d.told = d.waiting.n
	return delta
}
