package python

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// exchangeSize is how large the memory between a worker and a process may get, in bytes.
const exchangeSize = 8 << 30

// allLevels are the log lines of every level: the gateway drops those that it does not want.
const allLevels = 15

// process is a process that runs the runner.
type process interface {
	Pid() int
	Exited() <-chan struct{}
	// Err is why it has ended, with what it wrote last; valid after Exited.
	Err() error
	Kill()
	Signal(s syscall.Signal) error
	// RSS is its resident memory in bytes.
	RSS() (int64, error)
	// Last is what it has written to stderr last.
	Last() string
	// Stop waits for its end, and kills it after grace. It returns when it has ended.
	Stop(grace time.Duration)
}

// run is one life of an instance's process.
type run struct {
	owner    atomic.Pointer[model] // another one once the config is completed
	name     string                // of the instance
	log      *slog.Logger
	channel  *channel.Channel
	process  process
	commands *channel.Writer
	replies  *channel.Writer
	results  *channel.Reader // of whoever commands
	events   *channel.Reader // of the goroutine that reads them
	slots    slots
	calls    calls
	controls atomic.Int32 // calls of model control under way
	delayed  delayed
	// life ends with the process: it bounds what the process has asked the gateway for.
	life context.Context
	end  context.CancelFunc

	readiness readiness

	arenas backend.Arenas // that the process sees; nil: none
	hello  hello
	loaded uint32 // hooks

	// gone is closed when the process has ended, its events are read and its requests have failed.
	gone chan struct{}

	mu    sync.Mutex
	seen  uint64     // guarded by mu: events that were dealt with
	moved *sync.Cond // of mu: seen has moved, or over
	over  bool       // guarded by mu: no event comes any more
	fault error      // guarded by mu: why it was killed; nil: it was not
	said  bool       // guarded by mu: a frame for a request that has ended was logged

	answer   channel.Response // the event goroutine's
	declared declared         // guarded by model().metrics.mu
	// users are batches in execution, calls, and whoever else uses the channel.
	users  sync.WaitGroup
	served *atomic.Uint64 // requests that the process has executed
	// started are the sequences that began here, of a model with states in its process: the
	// instance's goroutine has them while one of its processes before is not known to be lost.
	started map[infer.Correlation]struct{}
}

// hello is what a runner says of itself.
type hello struct {
	protocol                      uint32
	python, implementation, numpy string
}

// newRun starts a process, or has one that others share take the instance in. ctx bounds that; the
// process lives on. at is where the instance lives; nil: the process is for it alone.
func newRun(ctx context.Context, m *model, name string, at *place, log *slog.Logger) (*run, error) {
	r := &run{name: name, gone: make(chan struct{})}
	if err := r.enter(ctx, m, at, log); err != nil {
		return nil, err
	}
	c := r.channel
	r.owner.Store(m)
	r.arenas = m.arenas()
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.moved = sync.NewCond(&r.mu)
	c.SetLevels(allLevels)
	r.log = log.With("pid", r.process.Pid())
	r.commands, r.replies = c.Writer(channel.Commands, r.process.Exited()), c.Writer(channel.Replies,
		r.process.Exited())
	r.results, r.events = c.Reader(channel.Results), c.Reader(channel.Events)
	go r.readEvents()
	go r.watch()
	return r, nil
}

// enter gives the run its process and channel.
func (r *run) enter(ctx context.Context, m *model, at *place, log *slog.Logger) (err error) {
	if at != nil && m.limits.together > 1 {
		var s *seat
		if r.channel, s, err = m.seats.take(ctx, m, *at, log); err != nil {
			return err
		}
		r.process, r.served = s, &s.hosting.served
		return nil
	}
	if r.channel, err = channel.New("sluice-"+r.name, exchangeSize); err != nil {
		return infer.Errorf(infer.Internal, "%w", err)
	}
	r.served = &atomic.Uint64{}
	if r.process, err = m.backend.spawn(ctx, m, r.name, []*channel.Channel{r.channel}); err != nil {
		return errors.Join(err, r.channel.Close())
	}
	return nil
}

// model is whose process it is.
func (r *run) model() *model { return r.owner.Load() }

// watch sees to the end of the process.
func (r *run) watch() {
	<-r.process.Exited()
	r.end()
	if err := r.channel.End(channel.Events); err != nil {
		r.log.Error("a Python process's events can't be ended", "error", err)
	}
	r.mu.Lock()
	for !r.over {
		r.moved.Wait()
	}
	r.mu.Unlock()
	r.failOpen()
	r.model().metrics.gone(r)
	close(r.gone)
	if err := r.channel.End(channel.Results); err != nil {
		r.log.Error("a Python process's results can't be ended", "error", err)
	}
}

// failOpen fails the requests of batches that were kept. Those of the batch that is executed are
// Execute's to fail.
func (r *run) failOpen() {
	for key, q := range r.slots.all() {
		q.batch.mu.Lock()
		if q.key == key && q.batch.b == nil {
			if err := q.batch.fail(q, r.lost()); err != nil {
				r.log.Warn("a request could not be failed", "error", err)
			}
			q.batch.close(q)
		}
		q.batch.mu.Unlock()
	}
}

// kill ends the process at once, for a reason that the log has.
func (r *run) kill(why error) {
	if r.condemn(why) {
		r.process.Kill()
	}
}

// condemn notes why the process will be killed; false: that is so already.
func (r *run) condemn(why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return false
	}
	r.fault = why
	r.log.Error("a Python process is killed", "error", why)
	return true
}

// dumpTime is how long a process has for writing the stacks of its threads.
const dumpTime = time.Second

// hung kills a process that takes too long. The runner writes the stacks of its threads before.
func (r *run) hung(why error) {
	if !r.condemn(why) {
		return
	}
	if err := r.process.Signal(syscall.SIGUSR1); err == nil {
		t := time.NewTimer(dumpTime)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.process.Exited():
		}
	}
	r.process.Kill()
}

// cause is why the process has ended.
func (r *run) cause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault != nil {
		return r.fault
	}
	if err := r.process.Err(); err != nil {
		return err
	}
	return errors.New("the process has ended")
}

// lost is how requests fail whose process has ended.
func (r *run) lost() error {
	m, reason := r.model(), infer.ReasonWorkerLost
	if !m.limits.retry && !m.stateful {
		reason = infer.ReasonNotReady
	}
	return infer.Refusef(infer.Unavailable, reason, "%s (%w)", unhealthy(r.name), r.cause())
}

// unhealthy is Triton's text for a process that has ended.
func unhealthy(name string) string { return fmt.Sprintf("Stub process '%s' is not healthy.", name) }

// isGone says that the process has ended, or is about to.
func (r *run) isGone() bool {
	select {
	case <-r.process.Exited(): // its requests fail after this, and must not come back to it
		return true
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fault != nil
}

// close waits for the end of the process, and for who still uses the channel, and frees that.
func (r *run) close() error {
	<-r.gone
	r.users.Wait()
	return r.channel.Close()
}

// command writes a frame and waits for its answer: one of the kind, or FAILED. here says that
// the goroutine is locked to its thread.
func (r *run) command(kind, want channel.Kind, id uint64, body []byte, here bool) (channel.Frame, error) {
	free, err := r.write(r.commands, kind, id, body, false)
	if err != nil {
		return channel.Frame{}, r.broken(err)
	}
	defer free()
	return r.result(want, here)
}

// result waits for a frame of that kind, or FAILED.
func (r *run) result(want channel.Kind, here bool) (channel.Frame, error) {
	next := r.results.Next
	if here {
		next = r.results.NextHere
	}
	f, err := next()
	if err == nil && f.Kind != want && f.Kind != channel.Failed {
		err = fmt.Errorf("%w: a frame of kind %d in place of %d", channel.ErrCorrupt, f.Kind, want)
	}
	if err != nil {
		return f, r.broken(err)
	}
	return f, nil
}

// broken ends the process because of what it wrote, or notes that it has ended.
func (r *run) broken(err error) error {
	if !errors.Is(err, channel.ErrClosed) {
		r.kill(err)
	}
	r.process.Kill()
	<-r.gone
	return r.lost()
}

// write writes a frame whose body may be larger than frames are. free gives back the memory of
// such a body, unless it is given to the process, which then gives it back itself.
func (r *run) write(w *channel.Writer, kind channel.Kind, id uint64, body []byte, given bool) (free func(), err error) {
	if len(body) <= channel.MaxBody {
		return func() {}, w.Write(kind, 0, id, body)
	}
	s, mem, err := r.channel.Exchange.Alloc(int64(len(body)), given)
	if err != nil {
		return nil, err
	}
	copy(mem, body)
	var e channel.Encoder
	e.Segment(s)
	if err := w.Write(kind, channel.Outside, id, e.Body()); err != nil {
		r.channel.Exchange.Free(s)
		return nil, err
	}
	return func() { r.channel.Exchange.Free(s) }, nil
}

// reply answers an event of the process. Any goroutine may call it but the one that reads events (replySoon), since
// it waits for room; an error is that the process
// has ended, or that there is no memory for the answer.
func (r *run) reply(id uint64, body []byte) error {
	_, err := r.write(r.replies, channel.Reply, id, body, true)
	return err
}
