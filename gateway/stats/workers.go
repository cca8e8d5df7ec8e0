package stats

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/proto/worker"
)

// Worker is the record of one worker process, through all its restarts.
type Worker struct {
	name     string
	up       atomic.Bool
	restarts atomic.Uint64

	mu     sync.Mutex
	report *worker.WatchResponse // nil: none, or the worker is down
}

// Worker gives the record of a worker by its name, such as "cpu" or "gpu0".
func (r *Registry) Worker(name string) *Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[name]
	if w == nil {
		w = &Worker{name: name}
		r.workers[name] = w
	}
	return w
}

// RemoveWorker forgets a worker that will not come back.
func (r *Registry) RemoveWorker(w *Worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, w.name)
}

// SetUp says whether the worker serves. Going down drops its last report.
func (w *Worker) SetUp(up bool) {
	w.up.Store(up)
	if !up {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.report = nil
	}
}

// Restarted counts a restart.
func (w *Worker) Restarted() { w.restarts.Add(1) }

// Report takes what the worker says of itself and its devices; it keeps the message.
func (w *Worker) Report(state *worker.WatchResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = state
}

func (w *Worker) last() *worker.WatchResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report
}

// Front counts the requests of one protocol by the code that was answered.
type Front struct {
	protocol string
	names    []string
	counts   []atomic.Uint64
	unknown  atomic.Uint64
}

// Front makes the counter of a protocol; codes are the codes that it may answer, as
// numbers, with the names they have in the metric. Others are counted as "other".
func (r *Registry) Front(protocol string, codes map[int]string) *Front {
	top := 0
	for c := range codes {
		top = max(top, c)
	}
	f := &Front{protocol: protocol, names: make([]string, top+1), counts: make([]atomic.Uint64, top+1)}
	for c, name := range codes {
		if c >= 0 {
			f.names[c] = name
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fronts[protocol] = f
	return f
}

// Answered counts one answer.
func (f *Front) Answered(code int) {
	if code < 0 || code >= len(f.counts) || f.names[code] == "" {
		f.unknown.Add(1)
		return
	}
	f.counts[code].Add(1)
}
