package drive

import "github.com/sluice-serve/sluice/gateway/schedule"

// limits is a driver's part in sharing resources with other models. The core holds every
// instance back; when something waits, the limiter is asked for each free one, and what
// it grants is offered to the core. A batch is formed only then, so requests that come
// while its instance stands in line still join it. An offer that the core doesn't take,
// because a delay holds the batch back or another instance must have it, is returned,
// and asked for again at the next event. All but to is guarded by Driver.mu.
type limits struct {
	to      schedule.Limiter // nil: instances share nothing
	wishes  []bool           // instances that stand in line
	waiting int              // how many
	offered int              // 1 + the instance that was granted and has no batch yet; 0: none
	ending  int              // 1 + the instance whose batch has ended and that has not given back; 0: none
}

// limit makes the driver's limiter. It is the last step of New: whatever fails before it
// leaves nothing with the limiter.
func (d *Driver) limit() (err error) {
	if d.deps.Limiter == nil {
		return nil
	}
	d.limits.wishes = make([]bool, d.health.Count())
	d.holdAll()
	d.limits.to, err = d.deps.Limiter(d.granted)
	return err
}

func (d *Driver) holdAll() {
	for i := range d.limits.wishes {
		d.core.Hold(i, true)
	}
}

// renewLimits takes back what was asked for a core that is not there any more.
func (d *Driver) renewLimits() {
	if d.limits.to == nil {
		return
	}
	if i := d.limits.ending - 1; i >= 0 {
		d.limits.ending = 0
		d.limits.to.Done(i, false)
	}
	if i := d.limits.offered - 1; i >= 0 {
		d.limits.offered = 0
		d.limits.to.Return(i)
	}
	for i := range d.limits.wishes {
		d.withdrawLocked(i)
	}
}

// forming is the batches of one event, in order.
type forming struct{ first, last *batch }

func (f *forming) add(b *batch) {
	if f.last == nil {
		f.first = b
	} else {
		f.last.post = b
	}
	f.last = b
}

// formLocked forms one batch; false: none can leave. It notes when to ask again.
func (d *Driver) formLocked(now int64) bool {
	entries, i := d.core.Next(now, d.scratch[:0])
	d.scratch = entries[:0]
	if i < 0 {
		if at := d.core.Wake(); at != 0 && (d.armed == 0 || at < d.armed) {
			d.armed = at
			d.timer.Set(at)
		}
		return false
	}
	d.newBatch(entries, i, now)
	return true
}

// shareLocked asks for every instance that is free while something waits, and gives up
// its wishes when nothing does.
func (d *Driver) shareLocked(now int64) {
	d.formLocked(now) // takes nothing, but sets the timer for what waits
	for i := 0; i < len(d.limits.wishes) && d.waiting.n > 0; i++ {
		d.wishLocked(i, now)
	}
	if d.waiting.n > 0 || d.limits.waiting == 0 {
		return
	}
	for i := range d.limits.wishes {
		d.withdrawLocked(i)
	}
}

// wishLocked asks for an instance if it is free.
func (d *Driver) wishLocked(i int, now int64) {
	if d.limits.wishes[i] || !d.freeLocked(i) {
		return
	}
	if d.limits.to.Want(i) {
		d.offerLocked(i, now)
		return
	}
	d.limits.wishes[i] = true
	d.limits.waiting++
}

// freeLocked says that an instance is in service and has no batch.
func (d *Driver) freeLocked(i int) bool {
	d.core.Hold(i, false)
	can := d.core.Can(i)
	d.core.Hold(i, true)
	return can
}

// offerLocked lets the core use a grant, or returns it.
func (d *Driver) offerLocked(i int, now int64) bool {
	d.limits.offered = i + 1 // a batch takes it
	d.core.Hold(i, false)
	used := d.formLocked(now)
	d.core.Hold(i, true)
	if !used {
		d.limits.offered = 0
		d.limits.to.Return(i)
	}
	return used
}

func (d *Driver) withdrawLocked(i int) {
	if d.limits.to != nil && d.limits.wishes[i] {
		d.limits.wishes[i] = false
		d.limits.waiting--
		d.limits.to.Withdraw(i)
	}
}

// granted is what the limiter calls, without any lock. What is not used is not asked
// for again here: two models that both can't use it yet would pass it to and fro.
func (d *Driver) granted(i int) {
	var n news
	if d.take(i, &n) || n.fault != nil {
		d.carry(&n)
	}
}

// take accepts a grant that still stands; false: it doesn't.
func (d *Driver) take(i int, n *news) bool {
	d.mu.Lock()
	defer d.unlock(n)
	if !d.limits.wishes[i] || !d.limits.to.Accept(i) {
		return false
	}
	d.limits.wishes[i] = false
	d.limits.waiting--
	now := d.deps.Clock.Now()
	if d.offerLocked(i, now) {
		d.shareLocked(now)
	}
	return true
}

// freedLocked is nextLocked when instance i's batch has ended: what it had is given back,
// and in the same moment asked for again if there is more to do.
func (d *Driver) freedLocked(i int, now int64) {
	if d.limits.to == nil {
		d.limits.ending = 0
		d.nextLocked(now)
		return
	}
	again := d.waiting.n > 0 && d.freeLocked(i)
	d.limits.ending = 0
	switch {
	case d.limits.to.Done(i, again):
		d.offerLocked(i, now)
	case again:
		d.limits.wishes[i] = true
		d.limits.waiting++
	}
	d.shareLocked(now)
}

// flushLimits tells other models of what this one gave back; no lock is held.
func (d *Driver) flushLimits() {
	if d.limits.to != nil {
		d.limits.to.Flush()
	}
}

// leaveLimits ends the driver's part; no lock is held.
func (d *Driver) leaveLimits() {
	if d.limits.to != nil {
		d.limits.to.Close()
	}
}
