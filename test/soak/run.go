package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

// tally is what the honest clients of one kind have seen.
type tally struct {
	exchanges, excused int
	slowest            time.Duration
	times              []time.Duration // the first maxTimes
}

const maxTimes = 200000

// runner runs honest and hostile clients on one server.
type runner struct {
	o     *options
	s     *server
	pace  time.Duration // a client's mean pause between exchanges
	first *figures      // at the first rest, when there were honest clients alone
	begun bool          // first has the memory that a round of hostile ones left too
	peak  atomic.Int64  // bytes that the gateway held at most
	kills atomic.Int64
	began time.Time
	stop  context.CancelFunc // of the watch over the peak
	over  sync.WaitGroup

	mu     sync.Mutex
	killed time.Time // the last time
	honest map[string]*tally
	faults []string
	seeds  *rand.Rand
	deck   []attack        // what comes next; all of them come before one comes again
	done   map[string]bool // names of attacks that ran
}

func newRunner(ctx context.Context, o *options, s *server) (*runner, error) {
	ctx, stop := context.WithCancel(ctx)
	r := &runner{o: o, s: s, pace: 10 * time.Millisecond, began: time.Now(), stop: stop, honest: map[string]*tally{}, done: map[string]bool{}, seeds: rand.New(rand.NewPCG(o.seed, 1))}
	r.over.Go(func() {
		for pause(ctx, 100*time.Millisecond) {
			n, err := resident(s.cmd.Process.Pid)
			if err != nil {
				continue // it ended, which others see
			}
			if n > r.peak.Load() {
				r.peak.Store(n)
			}
			if n > o.memory<<20 {
				r.fault("the gateway holds %.0f MB, the bound is %d MiB", mb(n), o.memory)
				return
			}
		}
	})
	return r, nil
}

func (r *runner) close() {
	r.stop()
	r.over.Wait()
}

func (r *runner) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) < 20 {
		r.faults = append(r.faults, fmt.Sprintf("after %v: ", time.Since(r.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}

// failed are all faults so far as one error, or nil.
func (r *runner) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.faults, "\n"))
}

// rng gives a client its own source of what is random.
func (r *runner) rng() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.seeds.Uint64(), r.seeds.Uint64()))
}

// honestUntil runs n clients of each kind until ctx ends, and waits for what they are at.
func (r *runner) honestUntil(ctx context.Context, n int) {
	var wg sync.WaitGroup
	for _, kind := range honestClients() {
		count := n
		if kind.name == "http-load" {
			count = 1 // it would unload what another uses
		}
		for range count {
			rng := r.rng()
			wg.Go(func() { r.client(ctx, kind, rng) })
		}
	}
	wg.Wait()
}

func (r *runner) client(ctx context.Context, kind honest, rng *rand.Rand) {
	do, closed := kind.open(r.s, rng)
	defer closed()
	for ctx.Err() == nil {
		// not ctx: an exchange that has begun is seen to its end
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.patience+20*time.Second)
		begin := time.Now()
		err := do(own)
		cancel()
		r.seen(kind, begin, err)
		if !pause(ctx, time.Duration(rng.Int64N(int64(2*r.pace)))) {
			return
		}
	}
}

// excuse is how long after a worker's death what depends on it may fail.
const excuse = 15 * time.Second

func (r *runner) seen(kind honest, begin time.Time, err error) {
	took := time.Since(begin)
	r.mu.Lock()
	t := r.honest[kind.name]
	if t == nil {
		t = &tally{}
		r.honest[kind.name] = t
	}
	t.exchanges++
	t.slowest = max(t.slowest, took)
	if len(t.times) < maxTimes {
		t.times = append(t.times, took)
	}
	var w *checked.Wrong
	excused := err != nil && kind.frail && !errors.As(err, &w) && r.killed.Add(excuse).After(begin)
	if excused {
		t.excused++
	}
	r.mu.Unlock()
	if err != nil && !excused {
		r.fault("%s: %v", kind.name, err)
	} else if took > r.o.patience {
		r.fault("%s: took %v", kind.name, took)
	}
}

// takeTally gives what honest clients saw since it was called last.
func (r *runner) takeTally() (all tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.honest {
		all.exchanges += t.exchanges
		all.excused += t.excused
		all.slowest = max(all.slowest, t.slowest)
		all.times = append(all.times, t.times...)
	}
	r.honest = map[string]*tally{}
	slices.Sort(all.times)
	return all
}

func (t *tally) quantile(q float64) time.Duration {
	if len(t.times) == 0 {
		return 0
	}
	return t.times[int(q*float64(len(t.times)-1))]
}

// attack runs one hostile client. What it can't even begin is a fault: the server must
// always take connections.
func (r *runner) attack(ctx context.Context, a attack, rng *rand.Rand) *notes {
	n := &notes{counts: map[string]int{}}
	if r.o.verbose {
		fmt.Printf("%6.1f s  %s begins\n", time.Since(r.began).Seconds(), a.name)
	}
	if err := a.run(ctx, r.s, rng, n); err != nil {
		r.fault("%s could not be done: %v", a.name, err)
	}
	if r.o.verbose {
		fmt.Printf("%6.1f s  %s: %s\n", time.Since(r.began).Seconds(), a.name, n)
	}
	return n
}

// draw gives the next attack of all.
func (r *runner) draw(all []attack) attack {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.deck) == 0 {
		r.deck = slices.Clone(all)
		r.seeds.Shuffle(len(r.deck), func(i, j int) { r.deck[i], r.deck[j] = r.deck[j], r.deck[i] })
	}
	a := r.deck[0]
	r.deck = r.deck[1:]
	r.done[a.name] = true
	return a
}

// atOnce is how many attacks run at a time.
const atOnce = 3

// share is how long an attack takes at most, so that a soak has time for all.
func (r *runner) share(all int) time.Duration {
	return min(7*time.Second, max(300*time.Millisecond, time.Duration(r.o.seconds)*time.Second*atOnce*3/4/time.Duration(all)))
}

// rest waits until the server holds no more than at the first rest, and gives what it
// holds; the first call is the first rest.
func (r *runner) rest(ctx context.Context, patience time.Duration) (*figures, error) {
	end := time.Now().Add(patience)
	for {
		f, err := r.s.look(ctx)
		if err != nil {
			return nil, errors.Join(err, r.s.down())
		}
		if r.first == nil {
			// connections of those that have just left are still seen to their end, and
			// goroutines that are kept for the next call wait for it a while
			if settle := min(time.Second+time.Duration(r.o.seconds)*time.Second/40, 15*time.Second); f.regions == 0 && time.Until(end) < patience-settle {
				r.first = f
				return f, nil
			}
		} else if err := f.more(r.first, r.begun); err == nil {
			if !r.begun { // pools, arenas and heap have been full for once
				r.begun = true
				r.first.resident, r.first.heap, r.first.workerResident = f.resident, f.heap, f.workerResident
			}
			return f, nil
		} else if time.Now().After(end) {
			return f, fmt.Errorf("at rest for %v the server holds more than at first:\n%w", patience, err)
		}
		if !pause(ctx, 500*time.Millisecond) {
			return f, ctx.Err()
		}
	}
}

// kill ends a worker as kill -9 does.
func (r *runner) kill(rng *rand.Rand) {
	workers := r.s.workers()
	if len(workers) == 0 {
		return
	}
	r.mu.Lock()
	r.killed = time.Now()
	r.mu.Unlock()
	r.kills.Add(1)
	pid := workers[rng.IntN(len(workers))]
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		r.fault("killing worker %d: %v", pid, err)
	}
}

// warm lets honest clients come and go, and gives the first figures.
func (r *runner) warm(ctx context.Context) (*figures, error) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r.honestUntil(short, 1)
	first, err := r.rest(ctx, 30*time.Second)
	return first, errors.Join(err, r.failed())
}

// oneByOne runs the attacks one after the other.
func (r *runner) oneByOne(ctx context.Context, all []attack) error {
	first, err := r.warm(ctx)
	if err != nil {
		return err
	}
	r.begun = true // each is held against no attack at all
	calm := r.takeTally()
	fmt.Printf("at first: %s\ncalm: %d honest exchanges, p99 %v, slowest %v\n\n", first, calm.exchanges, calm.quantile(0.99).Round(time.Millisecond), calm.slowest.Round(time.Millisecond))
	for _, a := range all {
		r.peak.Store(0)
		before := r.s.cpu()
		round, cancel := context.WithTimeout(ctx, r.o.each)
		var wg sync.WaitGroup
		wg.Go(func() { r.honestUntil(round, 1) })
		n := r.attack(round, a, r.rng())
		<-round.Done()
		cancel()
		wg.Wait()
		t := r.takeTally()
		fmt.Printf("%-22s honest %5d, p99 %6v, slowest %6v; peak %4.0f MB, %4.1f s of CPU; %s\n", a.name, t.exchanges, t.quantile(0.99).Round(time.Millisecond),
			t.slowest.Round(time.Millisecond), mb(r.peak.Load()), (r.s.cpu() - before).Seconds(), n)
		_, err := r.rest(ctx, 45*time.Second)
		if err = errors.Join(err, r.failed(), r.s.down()); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		if t.exchanges == 0 {
			return fmt.Errorf("%s: no honest exchange ended", a.name)
		}
	}
	last, err := r.s.look(ctx)
	fmt.Printf("\nat last: %s\n", last)
	return err
}

// soak runs rounds of attacks at random among honest clients, with a rest after each.
func (r *runner) soak(ctx context.Context, all []attack) error {
	first, err := r.warm(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%6.1f s  honest clients alone; at rest %s\n", time.Since(r.began).Seconds(), first)
	r.takeTally()
	rng := r.rng()
	length := time.Duration(r.o.seconds) * time.Second
	if r.o.seconds >= 60 {
		length /= 10
	}
	end := time.Now().Add(time.Duration(r.o.seconds) * time.Second)
	for round := 1; ctx.Err() == nil && (round == 1 || time.Now().Before(end)); round++ {
		left := min(length, max(time.Until(end), length/4))
		if err := r.round(ctx, left, all, rng); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		t := r.takeTally()
		f, err := r.rest(ctx, 60*time.Second)
		if f != nil {
			fmt.Printf("%6.1f s  round %d: %d honest exchanges, %d of them lost their worker, p99 %v, slowest %v, peak %.0f MB; at rest %s\n", time.Since(r.began).Seconds(), round,
				t.exchanges, t.excused, t.quantile(0.99).Round(time.Millisecond), t.slowest.Round(time.Millisecond), mb(r.peak.Load()), f)
		}
		if err = errors.Join(err, r.failed(), r.s.down()); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	fmt.Printf("%d workers were killed, %d of %d attacks ran\n", r.kills.Load(), len(r.done), len(all))
	return ctx.Err()
}

// round is one time of load: honest clients all along, a few attacks at a time, a kill.
func (r *runner) round(ctx context.Context, length time.Duration, all []attack, rng *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { r.honestUntil(ctx, 2) })
	if !r.o.calm && len(all) > 0 {
		for range atOnce {
			own, most := r.rng(), r.share(len(all))
			wg.Go(func() {
				for ctx.Err() == nil {
					some, stop := context.WithTimeout(ctx, most/7+time.Duration(own.Int64N(int64(most*6/7))))
					r.attack(some, r.draw(all), own)
					<-some.Done()
					stop()
				}
			})
		}
	}
	if r.o.kills && pause(ctx, time.Duration(rng.Int64N(int64(length)))) {
		r.kill(rng)
	}
	wg.Wait()
	if err := r.failed(); err != nil {
		return errors.Join(err, r.s.down())
	}
	return r.s.down()
}
