package calls

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client"
)

// Bounds on the lines of one model.
const (
	linesAtOnce    = 200
	linesPerSecond = 50
	maxLine        = 4096 // bytes
)

// lines are the log lines of models.
type lines struct {
	log *slog.Logger
	now func() time.Time

	mu      *sync.Mutex
	buckets map[string]*bucket // guarded by mu: by ownerOf
}

// bucket bounds the lines of one model: linesAtOnce, of which linesPerSecond come back.
type bucket struct {
	left    float64
	at      time.Time
	dropped int // lines since the last one that was written
}

func newLines(log *slog.Logger) lines {
	return lines{log: log, now: time.Now, mu: &sync.Mutex{}, buckets: map[string]*bucket{}}
}

// take takes a line's token; dropped are the lines that found none since the last one that did.
func (b *bucket) take(now time.Time) (dropped int, ok bool) {
	b.left = min(b.left+now.Sub(b.at).Seconds()*linesPerSecond, linesAtOnce)
	b.at = now
	if b.left < 1 {
		b.dropped++
		return 0, false
	}
	b.left--
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}

func (l *lines) write(ctx context.Context, from *client.Calling, line *worker.LogLine) {
	l.mu.Lock()
	b := l.buckets[ownerOf(from)]
	if b == nil {
		b = &bucket{left: linesAtOnce, at: l.now()}
		l.buckets[ownerOf(from)] = b
	}
	dropped, ok := b.take(l.now())
	l.mu.Unlock()
	if !ok {
		return
	}
	log := l.log.With("model", from.Model, "version", from.Version)
	if dropped > 0 {
		log.Warn(fmt.Sprintf("%d log lines of the model were dropped: it may write %d at once and %d in a second",
			dropped, linesAtOnce, linesPerSecond))
	}
	text := line.GetText()
	log.Log(ctx, levelOf(line.GetLevel()), strings.ToValidUTF8(text[:min(len(text), maxLine)], "\ufffd"))
}

func levelOf(l worker.LogLine_Level) slog.Level {
	switch l {
	case worker.LogLine_ERROR:
		return slog.LevelError
	case worker.LogLine_WARNING:
		return slog.LevelWarn
	case worker.LogLine_INFO:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (l *lines) forget(from *client.Calling) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.buckets, ownerOf(from))
}
