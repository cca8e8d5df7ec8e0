package drive

import (
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// unserved is how long no instance has been in service. A worker that ended is started again, and
// one on another host may be back soon, so requests wait; after schedule.Deps.WorkerWait all that
// wait are refused, and those that come, until an instance is in service again. All but is is
// guarded by Driver.mu.
type unserved struct {
	wait  time.Duration // 0: no bound
	until int64         // when is becomes true; 0: an instance is in service, or there is no bound
	is    atomic.Bool   // set under mu
}

// servedLocked follows what the instances' health has become.
func (d *Driver) servedLocked(now int64) {
	u := &d.unserved
	switch {
	case u.wait <= 0:
		return
	case d.health.Ready() > 0:
		u.until = 0
		d.setUnserved(false)
		return
	case u.until == 0:
		u.until = now + int64(u.wait)
	}
	if now < u.until {
		d.armUnserved()
		return
	}
	d.setUnserved(true)
	for it := d.waiting.head; it != nil; it = d.waiting.head {
		d.core.Remove(&it.Entry)
		d.failLocked(it, d.errUnserved(it.req))
	}
}

func (d *Driver) setUnserved(is bool) {
	if d.unserved.is.Load() != is {
		d.unserved.is.Store(is)
		d.broken.turned = true // Fault says something else
	}
}

// armUnserved has the timer fire when the wait is over.
func (d *Driver) armUnserved() {
	if at := d.unserved.until; d.armed == 0 || at < d.armed {
		d.armed = at
		d.timer.Set(at)
	}
}

// errUnserved is what requests get then. None has begun, so each may be tried at another gateway.
func (d *Driver) errUnserved(req *infer.Request) error {
	return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s%w", req.Prefix(), d.faultUnserved())
}

func (d *Driver) faultUnserved() error {
	return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "no worker has served model '%s' version %s for %v",
		d.cfg.Model.Name, d.version, d.unserved.wait)
}
