package h2

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"golang.org/x/net/http2"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
)

// A connection without a call is closed when its descriptor is needed, parked or not, and its
// client is told which calls were served.
func TestShed(t *testing.T) {
	for _, parks := range []bool{false, true} {
		f := start(t, func(c *Config) {
			if parks {
				c.Loops = []*loop.Loop{looptest.Start(t)}
			}
		})
		c := hello(t, f)
		for stream := uint32(1); stream < 20; stream += 2 {
			c.call(stream, "x")
			c.outcome(stream)
		}
		var all []listen.Resting
		poll(t, "it rests", func() bool {
			all = f.s.resting(0, nil)
			return len(all) == 1 && (!parks || isParked(f))
		})
		if all[0].Conn.Shed(all[0].Since - 1) {
			t.Error("closed, though it was heard later")
		}
		if !all[0].Conn.Shed(all[0].Since) || all[0].Conn.Shed(all[0].Since) {
			t.Error("not closed, or twice")
		}
		told := false
		for {
			got, err := c.next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("parked %v: %v, want EOF", parks, err)
				}
				break
			}
			if g, ok := got.(*http2.GoAwayFrame); ok {
				told = g.LastStreamID == 19 && g.ErrCode == http2.ErrCodeNo && bytes.Equal(g.DebugData(), nil)
			}
		}
		if !told {
			t.Errorf("parked %v: the client was not told", parks)
		}
		poll(t, "none is left", func() bool { return len(f.s.conns.All()) == 0 })
	}
}
