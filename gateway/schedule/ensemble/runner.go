package ensemble

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// runner drives one request.
type runner struct {
	s      *Scheduler
	req    *infer.Request
	send   infer.SendFunc
	ctx    context.Context // ends when the request fails, so that all steps do
	cancel context.CancelCauseFunc
	pins   []schedule.Pinned // by step; nil where the step is not needed
	wg     sync.WaitGroup

	mu     sync.Mutex
	news   sync.Cond // mu; a job ended, an answer came, or ctx ended
	run    *run      // mu
	err    error     // mu; the first failure
	spent  infer.ComputeTimes
	start  int64 // when the first step could begin
	began  bool  // a step's instance had a request
	broken bool  // mu; a panic has left run half done
	onHost bool  // nothing stays on a device

	roomPins [4]schedule.Pinned
	roomJobs [4]job
}

// do carries the request through the graph.
func (r *runner) do() error {
	defer r.unpin()
	p, err := r.pin()
	if err != nil {
		return r.wrap(-1, err)
	}
	r.start = infer.Now()
	r.run = newRun(p)
	f, jobs := r.run.begin(r.roomJobs[:0])
	r.fill(f)
	if err := r.bring(f); err != nil {
		r.release()
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.streams {
		defer context.AfterFunc(r.ctx, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.news.Broadcast()
		})()
		for _, j := range jobs {
			r.spawnLocked(j)
		}
	} else {
		r.guardLocked(func() { r.workLocked(jobs) })
	}
	r.guardLocked(r.serveLocked)
	r.mu.Unlock()
	r.wg.Wait()
	r.mu.Lock()
	err = r.err
	r.release()
	r.times(err == nil)
	return err
}

// release gives back the tensors that a failure left.
func (r *runner) release() {
	for _, f := range r.run.open {
		for t := range f.values {
			f.values[t].release()
		}
	}
}

// guardLocked calls f, which has the lock wherever it may panic. A panic is the failure of the
// request: what runs ends, and of what it was about to do nothing is waited for.
func (r *runner) guardLocked(f func()) {
	defer func() {
		if v := recover(); v != nil {
			r.broken = true
			r.failLocked(-1, infer.Recovered(v))
			r.news.Broadcast()
		}
	}()
	f()
}

// pin holds the models of the steps that are needed. All are held from the start, so
// that unloading one waits for the request.
func (r *runner) pin() (*plan, error) {
	s := r.s
	r.pins = append(r.roomPins[:0], make([]schedule.Pinned, len(s.cfg.Steps))...)
	p := s.graph.planFor(r.req.Outputs, nil)
	var decoupled []bool
	for i := range s.cfg.Steps {
		if !p.needed[i] {
			continue
		}
		m, err := s.deps.Steps.Pin(r.ctx, &s.cfg.Steps[i].Model)
		if err != nil {
			return nil, err
		}
		r.pins[i] = m
		if m.Decoupled() {
			if decoupled == nil {
				decoupled = make([]bool, len(s.cfg.Steps))
			}
			decoupled[i] = true
		}
	}
	if decoupled != nil {
		p = s.graph.planFor(r.req.Outputs, decoupled)
	}
	return p, nil
}

func (r *runner) unpin() {
	for _, m := range r.pins {
		if m != nil {
			m.Release()
		}
	}
}

// fill sets the tensors of the request.
func (r *runner) fill(f *frame) {
	for i, t := range r.s.graph.inputs {
		name := r.s.graph.names[t]
		v := &f.values[t]
		v.uses = r.run.p.uses[t]
		if v.uses == 0 {
			continue
		}
		at := i
		if at >= len(r.req.Inputs) || r.req.Inputs[at].Name != name {
			for at = 0; at < len(r.req.Inputs) && r.req.Inputs[at].Name != name; at++ {
			}
		}
		if at < len(r.req.Inputs) {
			r.req.Memory.Retain()
			v.tensor, v.mem, v.there = r.req.Inputs[at], r.req.Memory, true
			v.batched = r.s.cfg.Model.MaxBatchSize > 0
		}
	}
}

// workLocked runs jobs and what follows from them until nothing is left for this
// goroutine: it keeps one for itself and starts a goroutine for each other.
func (r *runner) workLocked(jobs []job) {
	for len(jobs) > 0 {
		for _, j := range jobs[1:] {
			r.spawnLocked(j)
		}
		j := jobs[0]
		r.mu.Unlock()
		c, err := r.call(j)
		r.mu.Lock()
		jobs = r.endLocked(j, c, err, jobs[:0])
	}
}

func (r *runner) spawnLocked(j job) {
	r.wg.Go(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		defer r.news.Broadcast()
		r.guardLocked(func() { r.goLocked(j) })
	})
}

// goLocked is a goroutine's part.
func (r *runner) goLocked(j job) {
	if !r.run.p.streams {
		r.workLocked([]job{j})
		return
	}
	r.mu.Unlock()
	c, err := r.call(j)
	r.mu.Lock()
	for _, next := range r.endLocked(j, c, err, nil) {
		r.spawnLocked(next)
	}
}

// call runs a step. A bug in it ends the request and not the process.
func (r *runner) call(j job) (c *call, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = infer.Recovered(p)
		}
	}()
	if r.s.slots != nil {
		slot := r.s.slots[j.step]
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-r.ctx.Done():
			return nil, r.left()
		}
	}
	m := r.pins[j.step]
	c = r.newCall(j, m)
	defer func() { c.req.Memory.Release() }() // nil where the step gave it back before
	take := c.take
	if r.run.p.decoupled[j.step] {
		take = func(resp *infer.Response) error { return r.part(j, c, resp) }
	}
	return c, r.s.deps.Steps.Call(r.ctx, m, &c.req, take)
}

func (r *runner) left() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonOf(r.ctx.Err()), "%srequest cancelled: %w", r.req.Prefix(), context.Cause(r.ctx))
}

// part takes one answer of a decoupled step, once there is room for what follows from
// it. An answer without outputs is only the end.
func (r *runner) part(j job, c *call, resp *infer.Response) error {
	if len(resp.Outputs) == 0 && resp.Final {
		resp.Memory.Release()
		return nil
	}
	most := maxFrames
	if n := r.s.cfg.MaxInflight; n > 0 {
		most = n * len(r.s.cfg.Steps)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.run.room(j, most) && r.ctx.Err() == nil {
		r.news.Wait()
	}
	if r.run.stopped || r.ctx.Err() != nil {
		resp.Memory.Release()
		return r.left()
	}
	f, jobs := r.run.answer(j, nil)
	defer func() { r.run.unstarted(jobs) }() // those that were not, also after a panic
	if err := r.keep(f, j, c, resp); err != nil {
		return err
	}
	for _, next := range jobs {
		r.spawnLocked(next)
	}
	jobs = nil
	r.news.Broadcast()
	return nil
}

// endLocked takes a job's end, and appends what may start now.
func (r *runner) endLocked(j job, c *call, err error, jobs []job) []job {
	if err == nil && c.resp == nil && !r.run.p.decoupled[j.step] {
		err = infer.Errorf(infer.Internal, "%smodel '%s' gave no answer", r.req.Prefix(), r.s.cfg.Steps[j.step].Model.Name)
	}
	if c != nil {
		r.spendLocked(&c.req.Times)
	}
	if err == nil && c.resp != nil {
		resp := c.resp
		c.resp = nil
		if r.run.stopped {
			resp.Memory.Release()
		} else {
			var f *frame
			f, jobs = r.run.answer(j, jobs)
			err = r.keep(f, j, c, resp)
		}
	} else if c != nil && c.resp != nil {
		c.resp.Memory.Release()
	}
	if err != nil {
		r.failLocked(j.step, err)
		r.run.unstarted(jobs)
		jobs = jobs[:0]
	}
	for _, t := range r.s.graph.nodes[j.step].reads {
		if v := &j.frame.values[t]; v.uses > 0 {
			v.drop()
		}
	}
	r.run.end(j)
	r.news.Broadcast()
	return jobs
}

func (r *runner) spendLocked(t *infer.Times) {
	if t.ComputeStart == 0 {
		return
	}
	r.began = true
	r.spent.Input += max(t.ComputeInputEnd-t.ComputeStart, 0)
	r.spent.Infer += max(t.ComputeOutputStart-t.ComputeInputEnd, 0)
	r.spent.Output += max(t.ComputeEnd-t.ComputeOutputStart, 0)
}

// failLocked keeps the first failure and ends the others.
func (r *runner) failLocked(step int, err error) {
	if r.err != nil {
		return
	}
	r.err = r.wrap(step, err)
	r.run.stop()
	r.cancel(r.err)
	r.news.Broadcast()
}

// serveLocked sends what can be sent until nothing is left to come, or a panic has left the
// books of that wrong.
func (r *runner) serveLocked() {
	ended := false // a final answer was sent
	for {
		if f := r.run.take(); f != nil {
			resp := r.response(f)
			r.run.done(f)
			resp.Final = !r.run.p.streams || r.run.running == 0 && len(r.run.waiting) == 0
			ended = ended || resp.Final
			r.sendLocked(resp)
			r.news.Broadcast()
			continue
		}
		if r.run.running == 0 || r.broken {
			break
		}
		r.news.Wait()
	}
	switch {
	case r.err != nil:
	case ended:
	case r.run.p.streams:
		r.sendLocked(&infer.Response{ID: r.req.ID, Model: r.s.cfg.Model.Name, Version: r.s.version, Final: true})
	default:
		// Source: EnsembleContext::FinishEnsemble of the original.
		r.failLocked(-1, infer.Errorf(infer.InvalidArg,
			"%sunexpected deadlock, at least one output is not set while no more ensemble steps can be made", r.req.Prefix()))
	}
}

// sendLocked sends an answer without the lock.
func (r *runner) sendLocked(resp *infer.Response) {
	if r.req.Timings { // they are among its parameters
		r.record()
	}
	r.mu.Unlock()
	err := r.give(resp)
	r.mu.Lock()
	if err != nil && r.err == nil {
		r.err = err // the caller's own
		r.run.stop()
		r.cancel(err)
		r.news.Broadcast()
	}
}

// give is send. Its panic is an error of the caller's own.
func (r *runner) give(resp *infer.Response) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = infer.Recovered(v)
		}
	}()
	return r.send(resp)
}

// times leaves the sum of the steps' times with the request, for its statistics.
// Source: RequestTracker::DecrementCounter of the original.
func (r *runner) times(ok bool) {
	if !ok && !r.began {
		return
	}
	r.record()
	if ok && r.s.deps.Observer != nil {
		r.executed()
	}
}

// executed tells the observer. The request has its answer: a panic fails it no more.
func (r *runner) executed() {
	defer func() {
		if v := recover(); v != nil {
			r.s.deps.Log.Error("an observer met a fault", "model", r.s.cfg.Model.Name, "version", r.s.version, "panic", v, "stack", string(debug.Stack()))
		}
	}()
	r.s.deps.Observer.Executed(1, r.req.Times.BatchRows, r.spent)
}

// record writes the sum so far into the request's times.
func (r *runner) record() {
	t := &r.req.Times
	t.ComputeStart = r.start
	t.ComputeInputEnd = t.ComputeStart + r.spent.Input
	t.ComputeOutputStart = t.ComputeInputEnd + r.spent.Infer
	t.ComputeEnd = t.ComputeOutputStart + r.spent.Output
	t.BatchRows = max(r.req.Rows, 1)
}

// wrap gives an error the names of the ensemble, in the original's words, and of the
// step where the text has not its model's.
func (r *runner) wrap(step int, err error) error {
	if cause := context.Cause(r.ctx); cause != nil && infer.CodeOf(err) == infer.Cancelled && errors.As(cause, new(*infer.Error)) {
		err = cause // stopped from above
	}
	text := ""
	if step >= 0 {
		if m := r.s.cfg.Steps[step].Model.Name; !strings.Contains(err.Error(), "'"+m+"'") || r.s.twice(m) {
			text = fmt.Sprintf(" (step %d, model '%s')", step, m)
		}
	}
	return &infer.Error{Code: infer.CodeOf(err), Reason: infer.ReasonOf(err),
		Err: fmt.Errorf("in ensemble '%s', %w%s", r.s.cfg.Model.Name, err, text)}
}

// twice says that several steps run a model.
func (s *Scheduler) twice(model string) bool {
	n := 0
	for i := range s.cfg.Steps {
		if s.cfg.Steps[i].Model.Name == model {
			n++
		}
	}
	return n > 1
}
