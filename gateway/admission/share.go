package admission

import (
	"sync"
	"time"
)

// share is the part of a meter that other gateways know of through Redis. Of a rate it
// has credit, which was taken there and is spent here; of what is held it has a claim, up
// to which this gateway decides alone. It is plain state but for its lock: link carries
// its questions and answers.
type share struct {
	mu     sync.Mutex
	limit  *Limit
	queued bool          // a question is to be asked
	wake   chan struct{} // closed when it is answered; nil: nobody waits
	need   int64         // what those who wait want, in sum
	least  int64         // what the least of them wants

	low    bool  // more credit is wanted
	credit int64 // units of a rate
	until  int64 // when what is left of the credit goes back
	debt   int64 // units that were used without credit
	left   int64 // units that Redis had left at the time asked
	asked  int64

	claim int64
	full  int64 // until when asking for more is of no use
	alone int64 // until when Redis has no key for the limit
}

// The times of a share.
const (
	creditLife = int64(time.Second)
	fullLife   = int64(20 * time.Millisecond)
	peekLife   = int64(50 * time.Millisecond)
	leftLife   = int64(time.Second) // others may have given something back since
	claimLife  = 5 * time.Second
	renewEvery = time.Second
)

// portion is the credit that is taken at one time beyond what is needed: what comes back
// in 50 ms, at most an eighth of the burst. Of less than one unit nothing is taken: the
// other gateways would miss it for longer.
func (l *Limit) portion() int64 { return int64(min(l.Rate/20, l.Burst/8)) }

// spare is the claim beyond what is held. It is not there for other gateways.
func (l *Limit) spare() int64 { return l.Most / 64 }

// question is what is asked of Redis for one meter.
type question struct {
	key               string
	held              bool
	rate, burst       float64 // of a rate: units a microsecond, units
	give, least, want int64
	limit, used       int64 // of what is held; want counts
	need              int64
	wake              chan struct{}
}

// takeLocked spends credit; n 0 asks whether there is any.
func (s *share) takeLocked(n, now int64) bool {
	s.lapseLocked(now)
	if s.credit < max(n, 1) {
		return false
	}
	s.credit -= n
	return true
}

// lapseLocked gives up credit that nobody used in time; it goes back with the next question.
func (s *share) lapseLocked(now int64) {
	if now >= s.until && s.credit > 0 {
		s.debt -= s.credit
		s.credit = 0
	}
}

// due says that there is something to tell which no call may come to tell.
func (s *share) due(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapseLocked(now)
	return s.debt != 0 || s.claim > 0
}

// shortLocked says how long it takes until Redis can have n, by what it said last; 0:
// it may have them.
func (s *share) shortLocked(n, now int64) int64 {
	if s.asked == 0 || now-s.asked > leftLife {
		return 0
	}
	there := float64(s.left+s.credit) + s.limit.Rate*float64(now-s.asked)/1e9
	short := min(float64(max(n, 1)), s.limit.Burst) - there
	if short <= 0 {
		return 0
	}
	return max(int64(min(short/s.limit.Rate*1e9, mostLeft)), leastWait) // some hundred days at most
}

// joinLocked adds a caller who waits for n.
func (s *share) joinLocked(n int64) chan struct{} {
	if s.wake == nil {
		s.wake, s.need, s.least = make(chan struct{}), 0, n
	}
	s.need += n
	s.least = min(s.least, n)
	return s.wake
}

// queue says that the question is to be asked; false: that was said already.
func (s *share) queue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued {
		return false
	}
	s.queued = true
	return true
}

// ask takes the question; those who wait hear of its answer.
func (s *share) ask(m *meter) question {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := question{held: m.key.kind.held(), wake: s.wake, need: s.need, least: s.least}
	s.queued, s.wake, s.need, s.least = false, nil, 0, 0
	if s.limit == nil { // nothing was ever wanted
		return question{wake: q.wake}
	}
	if q.held {
		q.limit, q.used = s.limit.Most, m.used.Load()
		q.want = q.used + q.need
		if q.want > 0 {
			q.want += s.limit.spare()
		}
		s.claim = min(s.claim, q.want) // what is given up is not used any more
		return q
	}
	q.rate, q.burst = s.limit.Rate/1e6, s.limit.Burst
	q.give, s.debt = -s.debt, 0
	if q.need > 0 || s.low {
		q.want = max(q.need+s.limit.portion()-s.credit, q.need)
	}
	s.low = false
	if q.least == 0 {
		q.least = 1
	}
	return q
}

// mostLeft bounds a debt: a number that counts exactly where numbers are float64.
const mostLeft = 1 << 53

// answer takes what Redis said: granted units or the claim, and what is left there. It
// believes no more than can be: not more than was asked for, nor more than the limit.
func (s *share) answer(q *question, a answer, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.key == 0 {
		s.forgetLocked()
		s.alone = now + aloneLife
		return
	}
	got, left := a.got, a.left
	if q.held {
		if s.claim = min(max(got, 0), max(q.limit, q.used)); s.claim < q.used+q.need {
			s.full = now + fullLife
		}
		return
	}
	if q.want <= 0 {
		got = 0
	}
	s.credit += min(max(got, 0), max(q.want, q.least))
	s.left, s.asked = max(min(left, int64(q.burst)), -mostLeft), now
	s.until = now + creditLife
}

// lost forgets what was asked: Redis is not there, and nothing that it granted counts.
func (s *share) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked()
}

func (s *share) forgetLocked() { s.credit, s.debt, s.asked, s.full, s.claim = 0, 0, 0, 0, 0 }

func (s *share) idle(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.queued && s.wake == nil && s.claim == 0 && s.debt == 0 && s.credit == 0
}

// draw spends n of a shared rate. Where Redis does not answer in time, the meter's own
// bucket decides.
func (l *Limits) draw(p *patience, u *use, n, now int64) (wait int64, ok bool) {
	m, s, k := u.meter, u.meter.shared, l.table.link
	cost := u.limit.speed.cost(n)
	for k.up() && !p.spent {
		s.mu.Lock()
		s.limit = u.limit
		if s.aloneLocked(now) {
			s.mu.Unlock()
			break
		}
		if s.takeLocked(n, now) {
			low := s.credit < u.limit.portion()/2 && s.shortLocked(1, now) == 0
			s.low = s.low || low
			s.mu.Unlock()
			if low {
				k.kick(m)
			}
			m.charge(now, cost)
			return 0, true
		}
		if wait := s.shortLocked(n, now); wait > 0 {
			s.mu.Unlock()
			return wait, false
		}
		wake := s.joinLocked(max(n, 1) - s.credit)
		s.mu.Unlock()
		if !k.kick(m) || !k.await(p, wake) {
			break
		}
		now = l.now()
	}
	wait = m.bucket.take(&u.limit.speed, now, cost)
	return wait, wait == 0
}

// peek says, without waiting, how long it takes until a rate has n, as far as this gateway
// knows: of a shared one by what Redis said last.
func (l *Limits) peek(u *use, n, now int64) (wait int64) {
	s := u.meter.shared
	if s == nil || !l.table.link.up() {
		return u.meter.bucket.look(&u.limit.speed, now, u.limit.speed.cost(n))
	}
	s.mu.Lock()
	s.limit = u.limit
	if s.aloneLocked(now) {
		s.mu.Unlock()
		return u.meter.bucket.look(&u.limit.speed, now, u.limit.speed.cost(n))
	}
	wait = s.shortLocked(n, now)
	old := now-s.asked > peekLife
	s.mu.Unlock()
	if old {
		l.table.link.kick(u.meter)
	}
	return wait
}

// claim holds n of what gateways share.
func (l *Limits) claim(p *patience, u *use, n int64) bool {
	m, s, k := u.meter, u.meter.shared, l.table.link
	for k.up() && !p.spent {
		s.mu.Lock()
		s.limit = u.limit
		if m.counter.take(min(s.claim, u.limit.Most), n) {
			s.mu.Unlock()
			return true
		}
		now := l.now()
		if s.aloneLocked(now) {
			s.mu.Unlock()
			break
		}
		if now < s.full {
			s.mu.Unlock()
			return false
		}
		wake := s.joinLocked(n)
		s.mu.Unlock()
		if !k.kick(m) || !k.await(p, wake) {
			break
		}
	}
	return m.counter.take(u.limit.Most, n)
}

// returned takes back a draw.
func (l *Limits) returned(u *use, n, now int64) {
	u.meter.refund(u.limit.speed.cost(n))
	if !l.table.link.up() {
		return
	}
	s := u.meter.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aloneLocked(now) {
		return
	}
	s.credit += n
	s.until = max(s.until, now+creditLife)
}

// owed charges other gateways too for what was used here.
func (l *Limits) owed(u *use, n int64) {
	if !l.table.link.up() {
		return
	}
	s := u.meter.shared
	s.mu.Lock()
	s.limit = u.limit
	paid := min(s.credit, n)
	s.credit -= paid
	s.debt += n - paid
	s.mu.Unlock()
	if n > paid {
		l.table.link.kick(u.meter)
	}
}

// released gives a part of the claim back when less is held.
func (l *Limits) released(u *use) {
	s := u.meter.shared
	s.mu.Lock()
	over := s.claim > u.meter.used.Load()+u.limit.spare()
	s.mu.Unlock()
	if over {
		l.table.link.kick(u.meter)
	}
}
