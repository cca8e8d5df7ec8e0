package admission

import (
	"math"
	"sync/atomic"
	"time"
)

// speed is a rate with a burst, as times: that of one unit, and the room of the bucket.
type speed struct {
	unit float64 // nanoseconds in which one unit comes back
	room int64   // nanoseconds in which the whole burst comes back
}

// newSpeed is a rate in units a second and a burst in units.
func newSpeed(rate, burst float64) speed {
	unit := float64(time.Second) / rate
	return speed{unit: unit, room: max(clampTime(unit*burst), 1)}
}

// longest bounds times, so that sums of them stay within an int64.
const longest = int64(366 * 24 * time.Hour)

func clampTime(ns float64) int64 {
	if ns >= float64(longest) {
		return longest
	}
	return int64(math.Ceil(ns))
}

// cost is the time in which so many units come back.
func (s *speed) cost(units int64) int64 { return clampTime(s.unit * float64(units)) }

// spend is the decision of a token bucket in its form of one number (GCRA): full is the
// time at which the bucket is full again. A cost of 0 asks whether anything is left. More
// than the whole burst passes when the bucket is full, and leaves a debt: else it never
// could. It returns the new time, or how long to wait for that cost.
func (s *speed) spend(full, now, cost int64) (next, wait int64) {
	full = max(full, now)
	switch {
	case cost == 0:
		if full-now < s.room {
			return full, 0
		}
		return full, full - now - s.room + 1
	case full-now+cost <= s.room || full == now:
		return full + cost, 0
	case cost > s.room:
		return full, full - now
	}
	return full, full - now + cost - s.room
}

// owe takes a cost that has been spent already, whatever is left. Debts are bounded.
func owe(full, now, cost int64) int64 { return min(max(full, now)+cost, now+longest) }

// bucket is a token bucket; the zero value is full. Safe for concurrent use.
type bucket struct{ full atomic.Int64 }

// take spends, or says how long to wait.
func (b *bucket) take(s *speed, now, cost int64) (wait int64) {
	for {
		old := b.full.Load()
		next, wait := s.spend(old, now, cost)
		if wait > 0 || cost == 0 || b.full.CompareAndSwap(old, next) {
			return wait
		}
	}
}

// look is take without spending.
func (b *bucket) look(s *speed, now, cost int64) (wait int64) {
	_, wait = s.spend(b.full.Load(), now, cost)
	return wait
}

// charge spends what is owed already.
func (b *bucket) charge(now, cost int64) {
	for {
		old := b.full.Load()
		if b.full.CompareAndSwap(old, owe(old, now, cost)) {
			return
		}
	}
}

// rescale keeps what was spent, in units, when a unit takes another time to come back.
func (b *bucket) rescale(by float64, now int64) {
	for {
		old := b.full.Load()
		if old <= now {
			return
		}
		if b.full.CompareAndSwap(old, now+clampTime(float64(old-now)*by)) {
			return
		}
	}
}

// refund gives back what take took for a call that was refused elsewhere.
func (b *bucket) refund(cost int64) { b.full.Add(-cost) }

// left is how many units could be spent now; negative: a debt.
func (b *bucket) left(s *speed, now int64) int64 {
	return int64(math.Floor(float64(s.room-(max(b.full.Load(), now)-now)) / s.unit))
}

func (b *bucket) idle(now int64) bool { return b.full.Load() <= now }
