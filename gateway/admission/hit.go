package admission

import (
	"context"
	"net/netip"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// Query is one question of Envoy's rate limit service.
type Query struct {
	Principal *infer.Principal // nil: nobody
	Model     string
	Action    infer.Action
	Remote    netip.Addr
	Hits      int64 // requests; 0: nothing is spent, it looks
	Bytes     int64 // of bodies; 0: not known
}

// Verdict is the answer to a Query.
type Verdict struct {
	Over   bool
	Rule   string        // the rule that refused, else the one that has the least left; "": none counts
	Limit  string        // of that rule, in words
	Rate   float64       // of that rule, units a second
	Left   int64         // units of that rule
	Retry  time.Duration // when trying again may succeed
	Reason infer.Reason  // "" where it is not over
}

// Hit counts a call for Envoy: it spends of the rules with `at: envoy`, and looks
// whether anything is left of the others, which the gateway will spend of. What is held
// is not looked at, since the call may end before it comes here.
func (l *Limits) Hit(ctx context.Context, q Query) Verdict {
	env := infer.Envelope{Principal: q.Principal, Action: q.Action, Remote: netip.AddrPortFrom(q.Remote, 0)}
	a := l.find(&env, q.Model, envoy)
	if a == nil {
		return Verdict{Left: -1}
	}
	defer l.leave(a)
	take := amounts{Requests: max(q.Hits, 1), Bytes: q.Bytes, Concurrency: skip, BytesInFlight: skip}
	now := l.now()
	pass := l.through
	if q.Hits == 0 {
		pass = l.looked
	}
	if u, wait := pass(ctx, a, &take, now); u != nil {
		return Verdict{Over: true, Rule: u.rule.Name, Limit: u.limit.text, Rate: u.limit.Rate, Retry: time.Duration(wait), Reason: reason(u.limit.Kind)}
	}
	v := Verdict{Left: -1}
	for i := range a.uses {
		u := &a.uses[i]
		if u.limit.Kind != Requests {
			continue
		}
		if left := max(u.meter.bucket.left(&u.limit.speed, now), 0); v.Left < 0 || left < v.Left {
			v.Rule, v.Limit, v.Rate, v.Left = u.rule.Name, u.limit.text, u.limit.Rate, left
		}
	}
	return v
}

// looked is through of a call that is only asked for, and spends nothing.
func (l *Limits) looked(_ context.Context, a *account, take *amounts, now int64) (*use, int64) {
	for i := range a.uses {
		u := &a.uses[i]
		if u.limit.Kind.held() || u.rule.shadow {
			continue
		}
		if wait := l.peek(u, u.ahead(take[u.limit.Kind]), now); wait > 0 {
			u.tally.refused.Add(1)
			return u, max(wait, leastWait)
		}
	}
	return nil, 0
}
