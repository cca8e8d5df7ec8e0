package repository

import "time"

// steady decides when a folder that somebody may be writing to is whole: when two looks
// that lie at least an interval apart saw the same, or when its newest file is older
// than that. It is a plain state machine: looks and times come in, decisions go out.
type steady struct {
	interval time.Duration
	seen     map[key]sight
}

// sight is a look, and when it was first seen like that.
type sight struct {
	look  look
	since time.Time
}

func newSteady(interval time.Duration) *steady {
	return &steady{interval: interval, seen: map[key]sight{}}
}

// still takes in a look and says whether the folder may be read.
func (s *steady) still(k key, l look, now time.Time) bool {
	old, ok := s.seen[k]
	if !ok || !old.look.same(l) {
		s.seen[k] = sight{l, now}
		age := now.Sub(l.newest)
		return age > s.interval && !ok
	}
	return now.Sub(old.since) >= s.interval
}

// forget drops what is known of folders that are gone.
func (s *steady) forget(there func(key) bool) {
	for k := range s.seen {
		if !there(k) {
			delete(s.seen, k)
		}
	}
}
