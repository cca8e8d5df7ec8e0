package ensemble

import "slices"

// run is the progress of one request through a plan. It is pure: what happens is told
// to it, and it says what may start and what may be sent.
type run struct {
	p       *plan
	made    []int // label: frames that were begun
	live    []int // label: frames that are not finished
	running int   // jobs that were handed out and have not ended
	sent    int   // frames whose answer was taken
	waiting []*frame
	stopped bool
	open    []*frame // those that are not finished

	roomMade, roomLive [2]int
	roomOpen           [1]*frame
}

// frame is one set of tensors that belong together: those of the request itself, or
// those that follow from one answer of a decoupled step.
type frame struct {
	label, index int
	values       []value // by tensor
	missing      []int   // by step: tensors that it reads and that are not there
	wants        int     // tensors of the answer that are not there
	left         int     // work of the label that is not done
}

// job is a step that may start.
type job struct {
	step  int
	frame *frame
}

func newRun(p *plan) *run {
	r := &run{p: p}
	r.open = r.roomOpen[:0]
	n := len(p.work)
	r.made, r.live = r.roomMade[:0], r.roomLive[:0]
	for range n {
		r.made, r.live = append(r.made, 0), append(r.live, 0)
	}
	return r
}

// begin makes the request's own frame, whose inputs are all there, and appends the
// steps that may start.
func (r *run) begin(jobs []job) (*frame, []job) {
	f := r.frame(0)
	for _, t := range r.p.g.inputs {
		jobs = r.set(f, t, jobs)
	}
	return f, jobs
}

func (r *run) frame(label int) *frame {
	p := r.p
	f := &frame{label: label, index: r.made[label], values: make([]value, len(p.g.names)), missing: make([]int, len(p.g.nodes)),
		left: p.work[label]}
	r.made[label]++
	if f.left > 0 {
		r.live[label]++
		r.open = append(r.open, f)
	}
	for i := range p.g.nodes {
		if p.needed[i] && p.in[i] == label {
			f.missing[i] = len(p.g.nodes[i].reads)
		}
	}
	if label == p.sink {
		for _, wanted := range p.wanted {
			if wanted {
				f.wants++
			}
		}
		r.waiting = append(r.waiting, f)
	}
	return f
}

// set says that a tensor of a frame is there, or will never be.
func (r *run) set(f *frame, tensor int, jobs []job) []job {
	if r.p.wanted[tensor] && f.label == r.p.sink {
		f.wants--
	}
	for _, i := range r.p.g.readers[tensor] {
		if !r.p.needed[i] || r.p.in[i] != f.label {
			continue
		}
		if f.missing[i]--; f.missing[i] == 0 && !r.stopped {
			jobs = append(jobs, job{step: i, frame: f})
			r.running++
		}
	}
	return jobs
}

// answer says that a step answered. The frame is where its outputs belong: the job's
// own, or a new one where the step is decoupled. Their values must be set before other
// calls. What may start now is appended.
func (r *run) answer(j job, jobs []job) (*frame, []job) {
	f := j.frame
	if r.p.decoupled[j.step] {
		f = r.frame(r.p.out[j.step])
	}
	for _, o := range r.p.g.nodes[j.step].out {
		jobs = r.set(f, o.tensor, jobs)
	}
	return f, jobs
}

// end says that a job will not answer any more.
func (r *run) end(j job) {
	r.running--
	r.done(j.frame)
}

func (r *run) done(f *frame) {
	if f.left--; f.left == 0 {
		r.live[f.label]--
		at := slices.Index(r.open, f)
		r.open = slices.Delete(r.open, at, at+1)
	}
}

// unstarted takes back jobs that were handed out and will not run, after a failure.
func (r *run) unstarted(jobs []job) { r.running -= len(jobs) }

// room says that a step may answer once more: fewer than most frames that its answers
// began are under way.
func (r *run) room(j job, most int) bool {
	return r.stopped || !r.p.decoupled[j.step] || r.live[r.p.out[j.step]] < most
}

// take is the next frame whose answer can be sent; nil: none yet.
func (r *run) take() *frame {
	if len(r.waiting) == 0 || r.waiting[0].wants > 0 || r.stopped {
		return nil
	}
	f := r.waiting[0]
	r.waiting = r.waiting[1:]
	r.sent++
	return f
}

// stop lets nothing start any more: the request has failed.
func (r *run) stop() { r.stopped = true }
