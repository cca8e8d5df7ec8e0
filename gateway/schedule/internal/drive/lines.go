package drive

import (
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// Lines are the waiting lines that a model's policies ask for.
func Lines(policy schedule.QueuePolicy, levels schedule.Levels) queue.Lines {
	lines := queue.Lines{Default: line(&policy), Fair: levels.Fair}
	for level, own := range levels.Own {
		if lines.Own == nil {
			lines.Own = make(map[uint64]queue.Line, len(levels.Own))
		}
		lines.Own[level] = line(own)
	}
	return lines
}

func line(p *schedule.QueuePolicy) queue.Line {
	return queue.Line{Limit: p.Limit(), Delays: p.TimeoutAction == schedule.Delay}
}
