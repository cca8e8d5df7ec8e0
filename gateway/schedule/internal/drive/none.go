package drive

import (
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// none is the Core of a driver that can't begin anew: there is nothing to ask, nothing waits,
// and nobody gets in. Each request that comes has the driver try again, and so does time; meanwhile
// the model is not ready (Fault).
type none struct{ d *Driver }

var _ Core = none{}

// beginLocked begins with a new core and its stage. A panic leaves the driver without.
func (d *Driver) beginLocked() {
	defer func() {
		v := recover()
		if v != nil {
			d.bugs = append(d.bugs, infer.Recovered(v))
			d.core, d.stage = none{d}, nil
		} else {
			d.broken.pause = 0
		}
		d.broken.set(v != nil)
	}()
	d.core, d.stage = d.cfg.Make()
	d.core.Restore(&d.health)
	d.holdAll()
	if d.stopping.Load() {
		d.core.Flush()
	}
}

// Full tries again. Whether the core that comes of it is full is no question: it is empty.
func (n none) Full(*queue.Entry) bool { n.d.beginLocked(); return false }

// Admit refuses everything. It is not asked once Full has had success.
func (n none) Admit(*queue.Entry) error                               { return n.d.errBroken() }
func (none) Verdict(*queue.Entry) error                               { return nil }
func (none) Add(*queue.Entry)                                         {}
func (none) Remove(*queue.Entry)                                      {}
func (none) Expire(int64) *queue.Entry                                { return nil }
func (none) Any() *queue.Entry                                        { return nil }
func (none) Next(_ int64, batch []*queue.Entry) ([]*queue.Entry, int) { return batch, -1 }
func (none) Idle() bool                                               { return false }
func (none) Wake() int64                                              { return 0 }
func (none) Done(int, []*queue.Entry)                                 {}
func (none) Lost(int, uint64, []*queue.Entry)                         {}
func (none) Again(*queue.Entry) bool                                  { return false }
func (none) Down(int)                                                 {}
func (none) Up(int)                                                   {}
func (none) Hold(int, bool)                                           {}
func (none) Can(int) bool                                             { return false }
func (none) Restore(*queue.Instances)                                 {}
func (none) Yields(*queue.Entry) *queue.Entry                         { return nil }
func (none) Repeat(*queue.Entry) bool                                 { return false }
func (none) Flush()                                                   {}
