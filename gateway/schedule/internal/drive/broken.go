package drive

import (
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

var _ schedule.Faulty = (*Driver)(nil)

// broken is whether a driver is without a core. All but is is guarded by Driver.mu.
type broken struct {
	is      atomic.Bool   // set under mu
	turned  bool          // in this event
	pause   time.Duration // before the next try that needs no request
	changed func()        // nil: nobody listens
}

func (b *broken) set(is bool) {
	if b.is.Load() != is {
		b.is.Store(is)
		b.turned = true
	}
}

// firstTry and lastTry bound the time between tries to begin anew without a request: where
// nobody sends any, since the model isn't ready.
const (
	firstTry = time.Second
	lastTry  = time.Minute
)

// againLocked has a driver without a core try once more, later.
func (d *Driver) againLocked() {
	d.broken.pause = min(max(2*d.broken.pause, firstTry), lastTry)
	quietly(func() {
		d.armed = d.deps.Clock.Now() + int64(d.broken.pause)
		d.timer.Set(d.armed)
	})
}

// Fault is schedule.Faulty's. It takes no lock.
func (d *Driver) Fault() error {
	if !d.broken.is.Load() {
		if d.unserved.is.Load() {
			return d.faultUnserved()
		}
		return nil
	}
	return infer.Errorf(infer.Internal, "the scheduler met a fault and could not begin anew; the log says which")
}

// turn tells that what Fault says has changed.
func (d *Driver) turn(changed func()) {
	defer d.caught("who watches a scheduler met a fault")
	changed()
}

// errBroken is what a request hears that finds no core. It has not begun, so it may be tried
// elsewhere.
// Source of the text: ModelRepositoryManager::GetModel of the original.
func (d *Driver) errBroken() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "Request for unknown model: '%s' version %s is not at ready state",
		d.cfg.Model.Name, d.version)
}
