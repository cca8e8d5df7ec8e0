package accesslog

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/logfile"
	"github.com/sluice-serve/sluice/infer"
)

// Figures say what became of the lines.
type Figures struct {
	Written uint64 // lines
	Lost    uint64 // lines for which there was no room, or that could not be written
	Rotated uint64 // times that the file was moved away for its size
}

// Log takes the ends of calls. Make it with Open; nil is no log.
type Log struct {
	cfg   Config
	deps  Deps
	lines sync.Pool // of *line
	oneOf atomic.Uint64

	written, lost, rotated atomic.Uint64

	pace     time.Duration // flushEvery
	patience time.Duration // lastWords
	wake     chan struct{} // the buffer is half full

	mu     sync.Mutex
	buffer []byte // mu; complete lines that wait
	count  int    // mu; how many

	// Run's alone:
	file       *logfile.File
	spare      []byte // the other half of the buffer
	complained time.Time
	warned     bool // of permissions
}

// Open opens the file, so that a path that can't be written is told at once. Run serves
// and closes it; who does not run it calls Close.
func Open(cfg Config, deps Deps) (*Log, error) {
	if !cfg.On() {
		return nil, nil
	}
	l := &Log{cfg: cfg, deps: deps, pace: flushEvery, patience: lastWords, wake: make(chan struct{}, 1), buffer: make([]byte, 0, cfg.Buffer/2)}
	l.lines.New = func() any { return &line{b: make([]byte, 0, 1024)} }
	l.spare = make([]byte, 0, cfg.Buffer/2)
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

// Figures are those up to now.
func (l *Log) Figures() Figures {
	return Figures{l.written.Load(), l.lost.Load(), l.rotated.Load()}
}

// Add writes the line of a call that ends now, if it is one of those that are written.
// It keeps nothing of env and end.
func (l *Log) Add(env *infer.Envelope, end *infer.End) {
	if l == nil {
		return
	}
	now := infer.Now()
	oneOf, ok := l.wanted(env, end, now)
	if !ok {
		return
	}
	n, _ := l.lines.Get().(*line)
	n.encode(env, end, time.Now().UnixNano(), now, oneOf)
	l.put(n.b)
	if cap(n.b) <= 16<<10 {
		l.lines.Put(n)
	}
}

// wanted says whether a call is written, and for how many it stands.
func (l *Log) wanted(env *infer.Envelope, end *infer.End, now int64) (oneOf int, ok bool) {
	if Outcome(env, end) != OK {
		return 1, true
	}
	if env.Action == infer.ActionHealth && !l.cfg.Health {
		return 0, false
	}
	if l.cfg.Slow > 0 && env.Opened != 0 && now-env.Opened >= int64(l.cfg.Slow) {
		return 1, true
	}
	switch l.cfg.Successes {
	case 0:
		return 0, false
	case 1:
		return 1, true
	}
	n := uint64(l.cfg.Successes)
	return l.cfg.Successes, l.oneOf.Add(1)%n == 1
}

// put copies a line into the buffer, or loses it.
func (l *Log) put(b []byte) {
	l.mu.Lock()
	if len(l.buffer)+len(b) > cap(l.buffer) {
		l.mu.Unlock()
		l.lost.Add(1)
		l.nudge()
		return
	}
	before := len(l.buffer)
	l.buffer = append(l.buffer, b...)
	l.count++
	half := cap(l.buffer) / 2
	l.mu.Unlock()
	if before < half && before+len(b) >= half {
		l.nudge()
	}
}

func (l *Log) nudge() {
	select {
	case l.wake <- struct{}{}:
	default: // Run knows
	}
}

// swap takes the lines that wait and leaves an empty buffer, whose memory is empty's.
func (l *Log) swap(empty []byte) ([]byte, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	full, n := l.buffer, l.count
	l.buffer, l.count = empty[:0], 0
	return full, n
}
