package client

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/shm"
)

type deaf struct{ Ears }

func (deaf) Detach(int) {}

// A panic of who gets a result ends the session, which fails what waits: else the results
// behind it would be lost, and nobody would know.
func TestFaultEndsSession(t *testing.T) {
	lane, err := shm.NewLane(shm.LaneConfig{Mailboxes: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer lane.Close()
	var ended []error
	s := &laneSource{laneLink: newLaneLink(nil, &peerMemory{lane: lane, log: slog.New(slog.DiscardHandler)}), ears: deaf{},
		ended: func(err error) { ended = append(ended, err) }}
	delivered := 0
	for box := range uint32(3) {
		b := &infer.Batch{ID: uint64(box) + 1}
		b.Deliver = func(*infer.Result) {
			if delivered++; box == 1 {
				panic("asked")
			}
		}
		s.boxes[box].Store(&executor{current: b})
		if err := lane.Complete(shm.Completion{Batch: b.ID, Mailbox: box, NoMemory: true}); err != nil {
			t.Fatal(err)
		}
	}
	if more, woke := s.Run(); more || !woke {
		t.Errorf("more %v, woke %v: it goes on", more, woke)
	}
	if len(ended) != 1 || ended[0] == nil || !strings.Contains(ended[0].Error(), "asked") || delivered != 2 {
		t.Errorf("ended %v after %d results", ended, delivered)
	}
}
