package redis

import "time"

// breakerConfig bounds how long a Redis that fails is still asked.
type breakerConfig struct {
	limit   int // score at which it opens; a failure counts failureScore, a success takes 1 off
	base    time.Duration
	longest time.Duration
}

// failureScore makes a breaker open when more than a fifth of the calls fail.
const failureScore = 4

func defaultBreaker() breakerConfig {
	return breakerConfig{limit: 5 * failureScore, base: time.Second, longest: 30 * time.Second}
}

// breaker decides whether Redis is asked. It is plain state: time comes in, decisions go
// out; times are nanoseconds. The zero value with a config is closed.
type breaker struct {
	cfg     breakerConfig
	score   int
	open    bool
	probing bool // open, and one call is under way to see
	until   int64
	pause   time.Duration
	life    uint64 // grows when it opens and with each probe: older calls decide nothing
}

// allow says that a call may be made now. The end of the call is told with its ticket by
// one of success, failure and undecided.
func (b *breaker) allow(now int64) (ticket uint64, ok bool) {
	switch {
	case !b.open:
		return b.life, true
	case b.probing || now < b.until:
		return 0, false
	}
	b.probing = true
	b.life++
	return b.life, true
}

// success says that a call was answered. It reports that this closed the breaker.
func (b *breaker) success(ticket uint64) bool {
	switch {
	case ticket != b.life:
		return false
	case b.open:
		b.open, b.probing, b.score, b.pause = false, false, 0, 0
		return true
	}
	b.score = max(0, b.score-1)
	return false
}

// failure says that a call failed or took too long. It reports that this opened the
// breaker, or keeps it open for another pause.
func (b *breaker) failure(ticket uint64, now int64) bool {
	if ticket != b.life {
		return false
	}
	if !b.open {
		if b.score += failureScore; b.score < b.cfg.limit {
			return false
		}
	}
	b.pause = min(max(2*b.pause, b.cfg.base), b.cfg.longest)
	b.open, b.probing, b.until = true, false, now+int64(b.pause)
	b.life++
	return true
}

// undecided says that a call's caller left before it ended.
func (b *breaker) undecided(ticket uint64) {
	if ticket == b.life {
		b.probing = false
	}
}
