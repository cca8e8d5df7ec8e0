package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

// reloaded is a model that is loaded and unloaded while others use it.
type reloaded struct {
	name    string
	folder  string // of the model in the repository
	history history
	steps   []*reloaded // of an ensemble
	adds    bool        // each load changes the number that it adds
	shift   int         // the numbers are 1<<shift, 2<<shift, ...
	turn    atomic.Int32

	reading sync.Mutex    // held while the folder is written, and while a load reads it
	found   map[int]int32 // what the folder's versions add
}

// churn is load at random on models that change meanwhile: calls, cancelled calls, cached
// answers that are purged, regions that are unregistered in use, sequences, streams. Each
// load changes what a model adds, so an answer shows which load it comes from.
type churn struct {
	r                *runner
	s                *server
	low, high, chain *reloaded
	tally, burst     *reloaded
	notes            *notes
}

func newChurn(r *runner, s *server) *churn {
	model := func(name string) *reloaded {
		return &reloaded{name: name, folder: filepath.Join(s.o.folder, "models", name), found: map[int]int32{1: 0}}
	}
	c := &churn{r: r, s: s, low: model("low"), high: model("high"), chain: model("chain"), tally: model("tally"), burst: model("burst"),
		notes: &notes{counts: map[string]int{}, most: 40}}
	c.low.adds, c.high.adds, c.high.shift = true, true, 16
	c.chain.steps = []*reloaded{c.low, c.high}
	for _, m := range c.models() {
		m.history.finish(m.history.begin(m.found), true) // the server has started with it
	}
	return c
}

func (c *churn) models() []*reloaded { return []*reloaded{c.low, c.high, c.chain, c.tally, c.burst} }

// next is a number that no load of the model has added before, for 32767 loads.
func (m *reloaded) next() int32 { return (m.turn.Add(1)%32767 + 1) << m.shift }

// comeback is how long an ensemble may take to serve again after its steps do, where another
// load of it is under way.
const comeback = 500 * time.Millisecond

// served says that calls to the model must be answered all the time between two times.
func (m *reloaded) served(begin, end time.Time) bool {
	if len(m.steps) > 0 {
		begin = begin.Add(-comeback)
	}
	return m.stepsServed(begin, end) && m.history.served(begin, end)
}

// stepsServed says so of the steps of an ensemble.
func (m *reloaded) stepsServed(begin, end time.Time) bool {
	return !slices.ContainsFunc(m.steps, func(step *reloaded) bool { return !step.history.served(begin, end) })
}

// check holds an answer against what was loaded while the call was under way. version is
// the one that was asked for, 0 the latest; got is the one that the answer names.
func (m *reloaded) check(in, out []int32, version, got int, begin, end time.Time) error {
	k, err := checked.Offset(in, out)
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	if len(m.steps) > 0 {
		low := k & 0xffff
		for i, part := range []int32{low, k - low} {
			if !m.steps[i].history.mayAdd(part, 0, 0, begin, end) {
				return checked.Wrongf("%s: %d was added by %s, which was not loaded so within %v%s", m.name, part, m.steps[i].name, end.Sub(begin), &m.steps[i].history)
			}
		}
		return nil
	}
	if !m.history.mayAdd(k, version, got, begin, end) {
		return checked.Wrongf("%s: version %d (asked for %d) added %d, which was not loaded so within %v%s", m.name, got, version, k, end.Sub(begin), &m.history)
	}
	return nil
}

// run is the whole of it, in parts with a rest after each.
func (c *churn) run(ctx context.Context) error {
	c.r.pace = c.r.o.pace
	length := time.Duration(c.r.o.seconds) * time.Second
	part := min(max(length/10, 10*time.Second), 5*time.Minute)
	if err := c.part(ctx, min(part, 5*time.Second), 0); err != nil { // the first rest is after it
		return fmt.Errorf("at first: %w", err)
	}
	end := time.Now().Add(length)
	for i := 1; ctx.Err() == nil && (i == 1 || time.Until(end) > 0); i++ {
		if err := c.part(ctx, min(part, max(time.Until(end), part/4)), i); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	fmt.Printf("%s\n%d workers were killed\n", c.notes, c.r.kills.Load())
	return ctx.Err()
}

// part is one part and its rest.
func (c *churn) part(ctx context.Context, length time.Duration, number int) error {
	before, began := c.s.cpu(), time.Now()
	load, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var wg sync.WaitGroup
	for _, kind := range c.clients() {
		for range kind.count {
			rng := c.r.rng()
			wg.Go(func() { c.r.client(load, kind.honest, rng) })
		}
	}
	if c.r.o.kills && number > 0 {
		rng := c.r.rng()
		wg.Go(func() {
			if pause(load, time.Duration(rng.Int64N(int64(length)))) {
				c.r.kill(rng)
			}
		})
	}
	wg.Wait()
	cores := (c.s.cpu() - before).Seconds() / time.Since(began).Seconds()
	if err := errors.Join(c.r.failed(), c.s.down()); err != nil {
		return err
	}
	if err := c.settle(ctx); err != nil {
		return errors.Join(err, c.s.down())
	}
	f, err := c.r.rest(ctx, 90*time.Second)
	t := c.r.takeTally()
	if f != nil {
		fmt.Printf("%6.1f s  part %d: %d exchanges, %d of them lost their worker, p99 %v, slowest %v, %.2f cores, peak %.0f MB; at rest %s\n",
			time.Since(c.r.began).Seconds(), number, t.exchanges, t.excused, t.quantile(0.99).Round(time.Millisecond),
			t.slowest.Round(time.Millisecond), cores, mb(c.r.peak.Load()), f)
	}
	return errors.Join(err, c.r.failed(), c.s.down())
}

// settle brings all models back to what their folders have, and wants answers made of it.
func (c *churn) settle(ctx context.Context) error {
	if !pause(ctx, abandonedFor) { // loads that were abandoned have ended
		return ctx.Err()
	}
	for _, m := range c.models() {
		if err := c.loadFolder(ctx, m); err != nil {
			return fmt.Errorf("load of %s for a rest: %w", m.name, err)
		}
	}
	rng := rand.New(rand.NewPCG(c.r.o.seed, 2))
	for _, m := range []*reloaded{c.low, c.high, c.chain} {
		do, closed := c.askJSON(m)(c.s, rng)
		err := do(ctx)
		closed()
		if err != nil {
			return fmt.Errorf("%s at rest: %w", m.name, err)
		}
	}
	return nil
}

// crowd is a kind of client and how many there are of it.
type crowd struct {
	honest
	count int
}

// clients are all of them. A killed worker takes some of their exchanges with it.
func (c *churn) clients() []crowd {
	var all []crowd
	add := func(count int, name string, open func(*server, *rand.Rand) (exchange, func())) {
		if !c.r.o.wants(name) {
			return
		}
		all = append(all, crowd{honest{name: name, open: open, frail: true}, count})
	}
	for _, m := range []*reloaded{c.low, c.high, c.chain} {
		add(3, "json-"+m.name, c.askJSON(m))
		add(2, "binary-"+m.name, c.askBinary(m))
		add(3, "grpc-"+m.name, c.askUnary(m))
		add(1, "stream-"+m.name, c.askStream(m))
		add(2, "leave-http-"+m.name, c.leaveHTTP(m))
		add(2, "leave-grpc-"+m.name, c.leaveGRPC(m))
		add(2, "region-"+m.name, c.useRegion(m))
	}
	for _, m := range c.models() {
		add(1, "control-"+m.name, c.control(m))
	}
	add(3, "sequences", c.countUp)
	add(2, "bursts", c.readBurst)
	add(1, "purges", c.purge)
	add(2, "looks", c.lookAround)
	return all
}
