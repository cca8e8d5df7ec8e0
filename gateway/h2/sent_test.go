package h2

import (
	"testing"
	"time"

	"google.golang.org/grpc/mem"
)

// toldCall hears that its answer will never be written.
type toldCall struct {
	echoCall
	sent chan struct{}
}

func (c *toldCall) Sent() bool {
	close(c.sent)
	return false
}

// slowPart takes its time to be freed, unless its call is told first.
type slowPart struct {
	mem.SliceBuffer
	sent  chan struct{}
	early chan bool
}

func (p *slowPart) Free() {
	select {
	case <-p.sent:
		p.early <- true
	case <-time.After(50 * time.Millisecond):
		p.early <- false
	}
}

// A call may use the memory of its answer again when it hears that it was sent: by then
// the transport has freed it.
func TestSentComesLast(t *testing.T) {
	c := &toldCall{sent: make(chan struct{})}
	early := make(chan bool, 1)
	o := output{told: []*Stream{{call: c}}, owned: []mem.BufferSlice{{&slowPart{sent: c.sent, early: early}}}}
	o.drop()
	if <-early {
		t.Error("the call was told while its answer was being freed")
	}
	<-c.sent
}
