package h1

import "github.com/sluice-serve/sluice/gateway/listen"

// Where memory is scarce, a client that takes nothing of its answer for listen.Patience is
// cut off, so that it does not hold for half a minute and more what others wait for. The
// watcher looks at every connection that is writing then, once a second, and only then.

// unmoved is a connection whose client takes nothing.
type unmoved struct {
	c     *conn
	state uint64
	listen.Untaken
}

// paced is what was seen of an answer while memory was scarce; tick's alone.
type paced struct {
	state  uint64 // the phase that it was in
	looked int64
	pace   listen.Pace
}

// relieve cuts off those who take nothing, if memory is scarce. It is tick's.
func (s *Server) relieve(now int64) {
	if s.cfg.Scarce == nil {
		return
	}
	scarce := s.cfg.Scarce()
	if !s.looks.Look(scarce) {
		return
	}
	var found []unmoved
	for _, c := range s.conns.All() {
		if u := c.unmoved(now); now-u.Since >= s.patience {
			found = append(found, u)
		}
	}
	if !scarce {
		return
	}
	if n := cutOff(found, s.cfg.Scarce); n > 0 {
		s.log.Warn("HTTP: memory is scarce, clients that don't take their answers are cut off", "cut", n, "waiting", len(found))
	}
}

// cutOff cuts connections off while memory is scarce.
func cutOff(found []unmoved, scarce func() bool) (cut int) {
	return listen.DropUntaken(found, func(u *unmoved) listen.Untaken { return u.Untaken }, scarce, func(u *unmoved) bool {
		same := u.c.state.Load() == u.state
		if same {
			u.c.cut()
		}
		return same
	})
}

// unmoved says since when the client of a connection that writes takes nothing: now, where it
// does, or where nothing is written.
func (c *conn) unmoved(now int64) unmoved {
	state, size := c.state.Load(), max(c.moved.Load(), c.holds.Load())
	u := unmoved{c, state, listen.Untaken{Since: now, Size: size}}
	if phaseOf(state) != writing {
		c.paced = paced{}
		return u
	}
	c.mu.Lock()
	sent, ok := listen.SentOn(c.nc, c.fd)
	c.mu.Unlock()
	if !ok {
		return u
	}
	p := &c.paced
	if p.state != state || now-p.looked > 3*lookPeriod {
		*p = paced{state: state}
	}
	p.looked = now
	u.Since = p.pace.Look(now, sent)
	return u
}

// lookPeriod is that of clock, in ns.
const lookPeriod = 1_000_000_000
