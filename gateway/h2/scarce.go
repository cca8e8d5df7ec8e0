package h2

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/tick"
)

// Where memory is scarce, who takes nothing of the answers that wait for him loses them
// after listen.Patience, and not after Config.WriteTimeout: one client must not hold the
// memory that others wait for. All connections are looked at once a second then, and only
// then.

// lookPeriod is how often it is looked whether memory is scarce.
const lookPeriod = time.Second

// least is what an answer must move, or those of a connection together, to have moved.
const least = 1 << 10

// relief looks at the connections. Its fields but mu's are its goroutine's alone.
type relief struct {
	patience int64 // listen.Patience, but in tests
	every    time.Duration
	looks    listen.Looks

	mu    sync.Mutex
	begun bool
	over  bool
	ended chan struct{} // closed by stop
	runs  sync.WaitGroup
}

// relieve starts it, with the first listener, where there is Memory.
func (s *Server) relieve() {
	m, r := s.deps.Memory, &s.relief
	r.mu.Lock()
	defer r.mu.Unlock()
	if m == nil || r.begun {
		return
	}
	r.begun = true
	r.runs.Go(func() {
		t := tick.New(r.every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				s.look(m, infer.Now())
				t.Next()
			case <-r.ended:
				return
			}
		}
	})
}

// stop ends it for good.
func (r *relief) stop() {
	r.mu.Lock()
	if r.begun = true; !r.over { // and relieve does not start it
		r.over = true
		close(r.ended)
	}
	r.mu.Unlock()
	r.runs.Wait()
}

// look looks at all connections, if memory is scarce or was of late, and drops what has not
// been taken for too long while it is.
func (s *Server) look(m Memory, now int64) {
	r := &s.relief
	scarce := m.Pressed()
	if !r.looks.Look(scarce) {
		return
	}
	var found []unmoved
	for _, c := range s.conns.All() {
		found = c.look(now, r, found)
	}
	if !scarce {
		return
	}
	if n := drop(found, m.Pressed); n > 0 {
		s.deps.Log.Warn("gRPC: memory is scarce, answers that their clients don't take are dropped", "dropped", n, "waiting", len(found))
	}
}

// drop drops answers while memory is scarce.
func drop(found []unmoved, pressed func() bool) (dropped int) {
	return listen.DropUntaken(found, func(u *unmoved) listen.Untaken { return u.Untaken }, pressed, (*unmoved).drop)
}

// unmoved is an answer that waits and is not taken, or with st nil all of a connection's.
type unmoved struct {
	c     *conn
	st    *Stream
	id    uint32
	moved int64 // st's
	listen.Untaken
}

// step is when something moved, and since when it could have moved again.
type step struct{ at, since int64 }

// look is told whether it has moved, and up to when all that was moved has arrived: before it
// has, the peer can't ask for more.
func (s *step) look(now, arrived int64, moved bool) {
	if moved {
		*s = step{now, now}
	} else if s.at > arrived {
		s.since = now
	}
}

// press is what was seen of a connection while memory was scarce. Guarded by conn.mu.
type press struct {
	looked int64
	pace   listen.Pace
	moved  int64 // conn.moved at its last step
	step   step
	stored int64 // all that moved before is with the kernel
	begun  int64 // and will be when the write that was seen is over
	write  int64 // conn.writing, of that

	// All that moved before arrived has come to the peer, and all before next will have when it
	// has taken mark. next is 0 where there is none.
	arrived, next, mark int64
}

// look finds what waits and is not taken.
func (c *conn) look(now int64, r *relief, found []unmoved) []unmoved {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil || !c.ready || len(c.sending) == 0 && c.writing == 0 {
		c.press = nil
		return found
	}
	p := c.press
	if p == nil || now-p.looked > 3*int64(r.every) {
		p = &press{}
		c.press = p
	}
	first := p.looked == 0
	p.looked = now
	sent, _ := listen.SentOn(c.nc, c.fd) // without a socket all that was written has arrived
	if since := p.pace.Look(now, sent); now-since >= r.patience {
		return append(found, unmoved{c: c, Untaken: listen.Untaken{Since: since, Size: int64(len(c.sending))}})
	}
	p.storedBy(now, c.flushing || !c.out.empty(), c.writing)
	p.arrivedBy(sent)
	moved := first || c.moved-p.moved >= least
	if moved {
		p.moved = c.moved
	}
	p.step.look(now, p.arrived, moved)
	for _, st := range c.sending {
		s := &st.seen
		moved := first || st.moved != s.moved || st.steps-s.steps >= least
		if moved {
			s.moved, s.steps = st.moved, st.steps
		}
		s.look(now, p.arrived, moved)
		since := s.since
		if st.sendLeft > 0 { // it waits for the connection's window, or its turn
			since = max(since, p.step.since)
		}
		if now-since >= r.patience {
			found = append(found, unmoved{c, st, st.id, st.moved, listen.Untaken{Since: since, Size: int64(st.out.left)}})
		}
	}
	return found
}

// storedBy notes what the kernel has by now. A write takes all that had moved when it began.
func (p *press) storedBy(now int64, busy bool, writing int64) {
	switch {
	case !busy:
		p.stored, p.begun = now, now
	case writing != 0 && writing != p.write:
		p.stored, p.begun = p.begun, writing
	}
	p.write = writing
}

// arrivedBy notes what the peer has by now.
func (p *press) arrivedBy(sent listen.Sent) {
	if p.next != 0 && sent.Taken >= p.mark {
		p.arrived, p.next = max(p.arrived, p.next), 0
	}
	switch {
	case sent.Queued == 0:
		p.arrived, p.next = max(p.arrived, p.stored), 0
	case p.next == 0:
		p.next, p.mark = p.stored, sent.Taken+sent.Queued
	}
}

// seen is what was seen of a call's answer while memory was scarce.
type seen struct {
	step
	moved int64
	steps int
}

// drop resets a call, or ends a connection, unless something has moved meanwhile.
func (u *unmoved) drop() bool {
	c := u.c
	if u.st == nil {
		c.close(errSilent)
		return true
	}
	c.mu.Lock()
	st := u.st
	still := c.ended == nil && c.streams.get(u.id) == st && st.queued && st.moved == u.moved
	if still {
		c.resetLocked(st, codeEnhanceYourCalm)
		c.asideLocked()
	}
	c.mu.Unlock()
	if still {
		st.End(context.Canceled)
	}
	return still
}
