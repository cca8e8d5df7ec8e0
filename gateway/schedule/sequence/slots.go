package sequence

// assign gives a sequence the lowest free slot of an instance in service; false: there
// is none.
func (c *Core) assign(s *sequence) bool {
	if c.free == 0 || c.Ready() == 0 {
		return false
	}
	for row := c.low; row < c.rules.slots; row++ {
		full := true
		for i := range c.slots {
			if c.slots[i][row] != nil {
				continue
			}
			full = false
			if c.InService(i) {
				c.slots[i][row] = s
				s.instance, s.row = i, row
				c.free--
				c.shares.take(s, 1)
				return true
			}
		}
		if full && row == c.low {
			c.low++
		}
	}
	return false
}

// promote makes the next request of a sequence a candidate.
func (c *Core) promote(s *sequence) {
	c.key(s)
	if c.heads == nil || s.instance < 0 || s.head != nil || s.busy != nil || s.line.Len() == 0 {
		return
	}
	e := s.line.First()
	s.line.Remove(e)
	s.head = e
	if e.Losses > 0 {
		c.heads[s.instance].Prepend(e)
	} else {
		c.heads[s.instance].Append(e)
	}
}

// key adds the shapes of its states to the key of a sequence's next request.
func (c *Core) key(s *sequence) {
	if c.stateKey == nil || s.busy != nil || s.line.Len() == 0 || s.head != nil {
		return
	}
	e := s.line.First()
	if s.keyed == e {
		return
	}
	s.keyed, s.keyLen = e, len(e.Key)
	e.Key = c.stateKey(e.Key, s, c.request(e).SequenceStart)
}

// sweep frees the slots of what is over, notes what is idle since now, ends what was
// idle for too long, and lets the backlog in.
func (c *Core) sweep(now int64) {
	c.lost.stamp(now, c.rules.idle)
	for _, s := range c.touched {
		s.touched = false
		switch {
		case s.waiting() || s.busy != nil:
			c.promote(s)
		case s.ended || c.flush:
			c.forget(s)
			c.release(s)
		case s.in == nil:
			s.since = now
			c.idle.add(s)
		}
	}
	c.touched = c.touched[:0]
	for s := c.idle.head; s != nil && c.rules.idle > 0 && now-s.since >= c.rules.idle; s = c.idle.head {
		c.forget(s)
		c.release(s)
	}
	c.admitBacklog()
}

// release ends a sequence that has nothing more to do. It may be told of one more than once:
// callers may leave after its end.
func (c *Core) release(s *sequence) {
	if s.sharer == nil {
		return
	}
	c.leaveList(s)
	if s.instance >= 0 {
		c.slots[s.instance][s.row] = nil
		c.low = min(c.low, s.row)
		s.instance, s.row = -1, -1
		c.free++
		c.shares.take(s, -1)
	}
	c.shares.leave(s)
	if s.hold != nil {
		c.held(s, false)
	}
	if c.drop != nil {
		c.drop(s)
	}
}
