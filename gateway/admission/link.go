package admission

import (
	"context"
	"log/slog"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// store answers questions; redisStore fits it. An error is of all of them.
type store interface {
	exchange(ctx context.Context, qs []question, answers []answer) error
	close() error
}

// The bounds of what is asked at one time.
const (
	maxKicks   = 4096
	maxAtOnce  = 128
	probeEvery = 500 * time.Millisecond
)

// link carries questions of all shares to Redis, on one goroutine, many at a time.
type link struct {
	limits *Limits
	store  store
	prefix string
	budget time.Duration
	log    *slog.Logger
	kicks  chan *meter
	stop   context.CancelFunc
	ended  chan struct{}

	down                atomic.Bool // as guard has it
	asked, failed, late atomic.Uint64
	foreign             atomic.Uint64 // answers from other keys than a limit's own
	notes               map[note]bool // what the log said of foreign values; run's

	mu    sync.Mutex
	guard guard // mu
}

// newLink starts the goroutine; close ends it and the store.
func newLink(ctx context.Context, l *Limits, s store, prefix string, budget time.Duration) *link {
	k := &link{limits: l, store: s, prefix: prefix, budget: budget, log: l.log, kicks: make(chan *meter, maxKicks), ended: make(chan struct{}),
		notes: map[note]bool{}}
	ctx, k.stop = context.WithCancel(context.WithoutCancel(ctx))
	go k.run(ctx)
	return k
}

func (k *link) close(context.Context) error {
	k.stop()
	<-k.ended
	return k.store.close()
}

// up says that Redis is asked.
func (k *link) up() bool { return !k.down.Load() }

// kick makes the meter's question be asked soon; false: there is no room.
func (k *link) kick(m *meter) bool {
	if !m.shared.queue() {
		return true
	}
	select {
	case k.kicks <- m:
		return true
	default:
	}
	m.shared.mu.Lock()
	m.shared.queued = false
	m.shared.mu.Unlock()
	return false
}

// patience is how long one step of a call waits for Redis, for all of its limits: a
// budget in all.
type patience struct {
	ctx   context.Context
	timer *time.Timer // nil: it never waited
	spent bool        // it waits no more
}

func (p *patience) end() {
	if p.timer != nil {
		p.timer.Stop()
	}
}

// await waits for an answer as long as there is patience; false: go on without it.
func (k *link) await(p *patience, wake chan struct{}) bool {
	if p.timer == nil {
		p.timer = time.NewTimer(k.budget)
	}
	select {
	case <-wake:
		return true
	case <-p.ctx.Done():
		p.spent = true
		return false
	case <-p.timer.C:
	}
	p.spent = true
	k.late.Add(1)
	k.mu.Lock()
	news := k.guard.waited()
	k.down.Store(k.guard.down)
	k.mu.Unlock()
	if news {
		k.log.Warn("limits: Redis is slow; each gateway limits alone for a while", slog.Duration("budget", k.budget))
	}
	return false
}

// run asks until ctx ends.
func (k *link) run(ctx context.Context) {
	defer close(k.ended)
	renew, probe := time.NewTicker(renewEvery), time.NewTicker(probeEvery)
	defer renew.Stop()
	defer probe.Stop()
	var batch []*meter
	for {
		batch = batch[:0]
		select {
		case m := <-k.kicks:
			batch = append(batch, m)
		case <-renew.C:
			batch = k.due(batch)
		case <-probe.C:
			if k.up() {
				continue
			}
			batch = k.due(batch)
		case <-ctx.Done():
			return
		}
		for len(batch) < maxAtOnce {
			select {
			case m := <-k.kicks:
				batch = append(batch, m)
				continue
			default:
			}
			break
		}
		if len(batch) > 0 || !k.up() {
			k.exchanges(ctx, batch)
		}
	}
}

// due adds the meters of which Redis is to hear, but for those that come anyway.
func (k *link) due(batch []*meter) []*meter {
	for _, m := range k.limits.table.due(k.limits.now()) {
		if m.shared.queue() {
			batch = append(batch, m)
		}
	}
	return batch
}

// exchanges asks for each meter once, for so many at a time that it does not take long.
// After one that failed the rest is not asked for. With none it looks whether Redis is
// there.
func (k *link) exchanges(ctx context.Context, batch []*meter) {
	var err error
	for first := true; first || len(batch) > 0; first = false {
		n := min(len(batch), maxAtOnce)
		err = k.exchange(ctx, batch[:n], err)
		batch = batch[n:]
	}
}

// exchange asks for each meter once; with failed it forgets what was to be asked.
func (k *link) exchange(ctx context.Context, batch []*meter, failed error) error {
	qs := make([]question, 0, len(batch))
	meters := make([]*meter, 0, len(batch))
	for _, m := range batch {
		q := m.shared.ask(m)
		if q.key = k.key(&m.key); q.wake == nil && !q.held && q.rate == 0 {
			continue
		}
		qs, meters = append(qs, q), append(meters, m)
	}
	answers := make([]answer, len(qs))
	err := failed
	if err == nil {
		k.asked.Add(1)
		err = k.store.exchange(ctx, qs, answers)
	}
	now := k.limits.now()
	for i, m := range meters {
		if err == nil {
			k.noteKey(m, &qs[i], answers[i].key)
			m.shared.answer(&qs[i], answers[i], now)
		} else {
			m.shared.lost()
		}
	}
	if failed == nil {
		k.decide(ctx, err)
	}
	for i := range qs { // they see the answer, and whether Redis is there
		if qs[i].wake != nil {
			close(qs[i].wake)
		}
	}
	return err
}

func (k *link) decide(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	var back, gone bool
	if err == nil {
		back = k.guard.answered()
	} else {
		k.failed.Add(1)
		gone = k.guard.failed()
	}
	k.down.Store(k.guard.down)
	k.mu.Unlock()
	switch {
	case back:
		k.log.Info("limits: Redis answers; they are shared again")
	case gone:
		k.log.Warn("limits: Redis does not answer; each gateway limits alone for a while", slog.String("error", err.Error()))
	}
}

// key is where a meter stands in Redis: what is a caller's own is escaped.
func (k *link) key(m *meterKey) string {
	remote := ""
	if m.remote != (netip.Addr{}) {
		remote = m.remote.String()
	}
	return k.prefix + "limit:" + url.QueryEscape(m.rule) + ":" + m.kind.String() + ":" + url.QueryEscape(m.principal) + ":" +
		url.QueryEscape(m.model) + ":" + remote
}
