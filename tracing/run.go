package tracing

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// writer is what Run has while it runs.
type writer struct {
	*Tracer
	encoder encoder
	files   files
	text    []byte
	waiting map[*epoch]struct{} // whose groups have text or an open file
	failing bool                // the last write failed, which the log knows
}

// Run encodes and writes traces until ctx ends; it then writes what has come until then
// and returns. File trouble is logged and loses traces; it is no error of Run.
func (t *Tracer) Run(ctx context.Context) error {
	w := &writer{Tracer: t, files: files{main: array{name: t.flags.File}}, waiting: map[*epoch]struct{}{}}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return err
	}
	w.encoder.base = ts.Nano() - infer.Now()
	var due *time.Timer
	var fire <-chan time.Time
	for {
		select {
		case f := <-t.queue:
			w.collect(f)
			if fire == nil && w.live() {
				due = time.NewTimer(flushAfter)
				fire = due.C
			}
		case <-t.kick:
			w.settle()
		case <-fire:
			fire = nil
			w.flush()
		case <-ctx.Done():
			if due != nil {
				due.Stop()
			}
			return w.finish()
		}
	}
}

// collect takes one sampled request.
func (w *writer) collect(f *infer.TraceFamily) {
	e := f.Owner.(*epoch)
	w.text = w.encoder.family(w.text[:0], f)
	w.budget.Add(f.Taken)
	if len(w.text) > 0 {
		e.group.add(w.text)
		w.waiting[e] = struct{}{}
	}
	if cap(w.text) > maxBuffer {
		w.text = nil
	}
	exhausted := e.end()
	frequency := e.settings.LogFrequency
	switch {
	case exhausted:
		w.write(e, true, true)
		w.rest()
	case frequency > 0 && e.group.traces >= frequency:
		w.write(e, true, true)
	case len(e.group.text) >= maxBuffer:
		w.write(e, frequency > 0, false)
	}
	if e.over.Load() && e.idle() {
		w.close(e)
	}
}

// write puts an epoch's group into a file. Trouble is told once until it is over.
func (w *writer) write(e *epoch, numbered, last bool) {
	lost, err := e.group.write(&w.files, numbered, last)
	if e.group.out == nil && len(e.group.text) == 0 {
		delete(w.waiting, e)
	}
	if lost > 0 {
		w.drop(lost)
	}
	switch {
	case err != nil && !w.failing:
		w.deps.Log.Error("failed creating trace file; traces are lost", "file", w.files.main.name, "error", err)
	case err == nil && w.failing:
		w.deps.Log.Info("traces are written again", "file", w.files.main.name, "lost", w.Dropped())
	}
	w.failing = err != nil
}

// live says that something waits that is to be in the main file soon.
func (w *writer) live() bool {
	for e := range w.waiting {
		if e.prompt() {
			return true
		}
	}
	return false
}

// prompt says that the epoch's traces go to the main file without waiting for others:
// where a count runs out they are to lie together in a numbered file.
func (e *epoch) prompt() bool { return e.settings.LogFrequency == 0 && e.settings.Count < 0 }

func (w *writer) flush() {
	for e := range w.waiting {
		if e.prompt() {
			w.write(e, false, false)
		}
	}
}

// settle ends the groups of epochs that are over, or have used up their count, and have
// no trace under way.
func (w *writer) settle() {
	for e := range w.waiting {
		switch {
		case e.over.Load() && e.idle():
			w.close(e)
		case e.exhausted(): // its last trace was lost
			w.write(e, true, true)
		}
	}
	w.rest()
}

// close writes what is left of an epoch: to a numbered file where log_frequency asks for
// those, or where one is open.
func (w *writer) close(e *epoch) {
	if len(e.group.text) > 0 || e.group.out != nil {
		w.write(e, e.settings.LogFrequency > 0 || e.group.out != nil, true)
	}
}

// finish writes all that there is.
func (w *writer) finish() error {
	for {
		select {
		case f := <-w.queue:
			w.collect(f)
			continue
		default:
		}
		break
	}
	for e := range w.waiting {
		w.close(e)
	}
	if n := w.Dropped(); n > 0 {
		w.deps.Log.Warn("traces were lost", "count", n)
	}
	if err := w.files.main.close(); err != nil {
		w.deps.Log.Error("closing the trace file", "error", err)
	}
	return nil
}
