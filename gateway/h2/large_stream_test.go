package h2

import (
	"context"
	"strings"
	"testing"
	"time"

	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// TestLargeMessagesOfStreams sees that a message of a stream arrives whose rest is more than
// its window has left, whatever came before it: alone, and behind ones that were read and are
// too small for an update of the window.
func TestLargeMessagesOfStreams(t *testing.T) {
	f := start(t, func(c *Config) { c.StreamWindow, c.ConnectionWindow = 1<<16, 1<<17 })
	for name, sizes := range map[string][]int{
		"twice the window":             {2 << 16, 2 << 16},
		"behind less than half of one": {30000, 60000},
		"a little more at a time":      {20000, 30000, 40000, 50000, 60000, 70000, 80000, 90000, 1 << 20},
		"small ones between":           {10, 200000, 10, 10, 70000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			stream, err := reflectpb.NewServerReflectionClient(f.dial(t)).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			send := func(size int) {
				list := reflectpb.ServerReflectionRequest_ListServices{}
				if err := stream.Send(&reflectpb.ServerReflectionRequest{Host: strings.Repeat("h", size), MessageRequest: &list}); err != nil {
					t.Errorf("sending %d bytes: %v", size, err)
				}
			}
			receive := func(size int) {
				if a, err := stream.Recv(); err != nil || len(a.GetOriginalRequest().GetHost()) != size {
					t.Errorf("a message of %d bytes: %v", size, err)
				}
			}
			for _, size := range sizes { // one after the other
				send(size)
				receive(size)
			}
			ahead := make(chan struct{})
			go func() {
				defer close(ahead)
				for _, size := range sizes {
					send(size)
				}
			}()
			for _, size := range sizes {
				receive(size)
			}
			<-ahead
		})
	}
}

// TestUnreadMessagesOfStreams sees that of messages which nobody reads no more than a window
// and one message is taken.
func TestUnreadMessagesOfStreams(t *testing.T) {
	b, st := &inbox{}, &Stream{record: record{c: &conn{s: &Server{}}}}
	steps := []struct {
		came, taken, waiting, credit int
	}{
		{came: 50, credit: 50},             // half a message
		{came: 60, waiting: 1, credit: 0},  // the rest of it
		{came: 100, waiting: 1, credit: 0}, // half of the next one
		{came: 100, waiting: 2, credit: 0},
		{taken: 110, waiting: 1, credit: 60},
		{came: 10, waiting: 1, credit: 0},     // of the third one
		{taken: 200, waiting: 0, credit: 210}, // it is the next
		{came: 5, waiting: 0, credit: 5},
		{taken: 20, waiting: 0, credit: 5}, // its last bytes are counted behind
		{came: 5, waiting: 0, credit: 0},
	}
	for i, s := range steps {
		b.waiting = make([]waiting, s.waiting)
		b.taken += int64(s.taken)
		if got := b.arrived(st, s.came); got != s.credit {
			t.Errorf("step %d: %d bytes are credited, want %d", i, got, s.credit)
		}
	}
}
