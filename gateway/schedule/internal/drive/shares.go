package drive

import (
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// Sharer is a Core whose full line is divided between callers. A core without it refuses
// whoever comes.
type Sharer interface {
	// Yields is the waiting entry that gives way to e; nil: none does.
	Yields(e *queue.Entry) *queue.Entry
}

var _ Sharer = (*queue.Core)(nil)

// yields is the item that gives way to one for which there is no room; nil: none does.
func (d *Driver) yields(it *item) *item {
	if s, ok := d.core.(Sharer); ok {
		if e := s.Yields(&it.Entry); e != nil {
			return e.Owner.(*item)
		}
	}
	return nil
}

// displaceLocked refuses an item in favour of one whose caller has less in line.
func (d *Driver) displaceLocked(it *item) {
	if it == nil {
		return
	}
	d.core.Remove(&it.Entry)
	d.failLocked(it, infer.Refusef(infer.Unavailable, infer.ReasonFairShare,
		"%sExceeds maximum queue size: the request gave way to a caller with fewer waiting", it.req.Prefix()))
}
