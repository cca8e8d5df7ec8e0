package dynamic

import (
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue/queuetest"
	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

func TestTranscripts(t *testing.T) {
	queuetest.Run(t, update, func(c queuetest.Config) queue.Cutter {
		return newBatcher(c.Max, c.Preferred, c.Delay)
	})
}
