package auth

import "time"

// How often an issuer's keys are fetched.
const (
	refreshEvery = 5 * time.Minute
	unknownEvery = 10 * time.Second // at most, for tokens with keys that we have not
	retryFirst   = time.Second
	retryLast    = time.Minute
)

// refresher decides when an issuer's keys are fetched. It is a plain state machine: time
// comes in, decisions go out.
type refresher struct {
	running  bool
	good     bool // there are keys
	wanted   bool // a token had a key that we have not
	failures int
	tried    time.Time // when the last fetch began
	fetched  time.Time // when the last one that went well began
}

// next is when a fetch is due, given that nothing happens until then; false: one runs.
func (r *refresher) next() (time.Time, bool) {
	switch {
	case r.running:
		return time.Time{}, false
	case r.failures > 0:
		return r.tried.Add(min(retryFirst<<min(r.failures-1, 10), retryLast)), true
	case r.wanted:
		return r.tried.Add(unknownEvery), true
	case !r.good:
		return r.tried, true
	}
	return r.fetched.Add(refreshEvery), true
}

// begin says that a fetch begins.
func (r *refresher) begin(now time.Time) { r.running, r.tried, r.wanted = true, now, false }

// end says how it went.
func (r *refresher) end(ok bool) {
	r.running = false
	if !ok {
		r.failures++
		return
	}
	r.good, r.failures, r.fetched = true, 0, r.tried
}

// unknown is told of a token whose key we have not. It says that the keys may come: that
// the caller should try again.
func (r *refresher) unknown(now time.Time) (pending bool) {
	switch {
	case r.running || !r.good:
		return true
	case now.Sub(r.tried) < unknownEvery || r.failures > 0:
		return false // they were asked for just now, and it was not among them
	}
	r.wanted = true
	return true
}
