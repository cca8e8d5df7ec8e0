package drive

import "github.com/sluice-serve/sluice/infer"

// yields is the item that gives way to one for which there is no room; nil: none does.
func (d *Driver) yields(it *item) *item {
	if e := d.core.Yields(&it.Entry); e != nil {
		return e.Owner.(*item)
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
