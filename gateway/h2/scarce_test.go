package h2

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
)

// greedy asks for answers on streams from first on, and takes nothing of them.
func greedy(c *rawConn, first uint32, calls, size int) (last uint32) {
	for i := range calls {
		last = first + uint32(2*i)
		c.call(last, strings.Repeat("g", size))
	}
	return last
}

// settled waits until so many answers wait on the server's connections.
func settled(t *testing.T, f *fixture, n int) {
	t.Helper()
	poll(t, "the answers wait", func() bool { return unsent(f) == n })
}

func unsent(f *fixture) (n int) {
	for _, c := range f.s.conns.All() {
		c.mu.Lock()
		n += len(c.sending)
		c.mu.Unlock()
	}
	return n
}

// TestScarceDropsWhatIsNotTaken has clients that don't take their answers: they lose them soon
// where memory is scarce, and only there.
func TestScarceDropsWhatIsNotTaken(t *testing.T) {
	zero := http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}
	for _, test := range []struct {
		name     string
		settings []http2.Setting
		after    func(t *testing.T, c *rawConn, last uint32) // the answers wait
	}{
		{"no window", []http2.Setting{zero}, nil},
		{"no window of the connection", []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1 << 20}}, nil},
		{"a byte at a time", []http2.Setting{zero}, func(t *testing.T, c *rawConn, last uint32) {
			stop := make(chan struct{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				tick := time.NewTicker(10 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						if c.fr.WriteWindowUpdate(last, 1) != nil {
							return
						}
					case <-stop:
						return
					}
				}
			}()
			t.Cleanup(func() { close(stop); <-done })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := start(t, nil)
			c := hello(t, f, test.settings...)
			const calls = 20
			last := greedy(c, 1, calls, 10000)
			want := calls
			if test.settings[0].Val > 0 { // the connection's window takes six, and a part of the seventh
				want -= 6
			}
			settled(t, f, want)
			f.memory.few.Store(true)
			if test.after != nil {
				test.after(t, c, last)
			}
			begin := time.Now()
			if got := c.outcome(last); got != "reset ENHANCE_YOUR_CALM" {
				t.Error(got)
			}
			settled(t, f, 0)
			if took := time.Since(begin); took < time.Duration(f.s.relief.patience)/2 {
				t.Errorf("they had %v", took)
			}
		})
	}
	t.Run("enough memory", func(t *testing.T) {
		f := start(t, nil)
		c := hello(t, f, zero)
		last := greedy(c, 1, 20, 10000)
		settled(t, f, 20)
		quiet := time.NewTimer(time.Duration(f.s.relief.patience) * 3 / 2)
		<-quiet.C
		c.must(c.fr.WriteWindowUpdate(last, 1<<20))
		if got := c.outcome(last); got != "0 "+strings.Repeat("g", 10000) {
			t.Errorf("%.40s", got)
		}
	})
}

// TestScarceBesideOneThatMoves sees that a call which takes its answer does not keep others.
func TestScarceBesideOneThatMoves(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.must(c.fr.WriteWindowUpdate(0, 1<<30))
	greedy(c, 1, 10, 10000)
	body := strings.Repeat("m", 400<<10)
	c.headers(21, false, request()...)
	for b := message(body); len(b) > 0; b = b[min(len(b), 16384):] {
		c.must(c.fr.WriteData(21, len(b) <= 16384, b[:min(len(b), 16384)]))
	}
	settled(t, f, 11)
	f.memory.few.Store(true)
	taken := make(chan struct{})
	go func() { // 200 KB a second, for two seconds
		defer close(taken)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range len(body)/4096 + 1 {
			<-tick.C
			if c.fr.WriteWindowUpdate(21, 4096) != nil {
				return
			}
		}
	}()
	if got := c.outcome(1); got != "reset ENHANCE_YOUR_CALM" {
		t.Error(got)
	}
	if got := c.outcome(21); got != "0 "+body {
		t.Errorf("who takes 200 KB a second: %.40s", got)
	}
	<-taken
}

// TestScarceSparesWhoReads has a client that reads slowly and opens its windows for what it
// has read: each of its answers waits for longer than the patience, with all others before it.
func TestScarceSparesWhoReads(t *testing.T) {
	f := start(t, nil)
	f.memory.few.Store(true)
	c := hello(t, f)
	const calls, size = 12, 100 << 10
	for id := uint32(1); id < 2*calls; id += 2 {
		c.headers(id, false, request()...)
		for b := message(strings.Repeat("s", size)); len(b) > 0; b = b[min(len(b), 16384):] {
			c.must(c.fr.WriteData(id, len(b) <= 16384, b[:min(len(b), 16384)]))
		}
	}
	tick := time.NewTicker(40 * time.Millisecond) // 16 KiB each time: 400 KB a second
	defer tick.Stop()
	for ended := 0; ended < calls; {
		fr, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch fr := fr.(type) {
		case *http2.RSTStreamFrame:
			t.Fatalf("stream %d was reset: %v", fr.StreamID, fr.ErrCode)
		case *http2.DataFrame:
			<-tick.C
			c.must(c.fr.WriteWindowUpdate(0, uint32(fr.Length)))
			if !c.seen[fr.StreamID].ended && len(c.seen[fr.StreamID].data) < size+5 {
				c.must(c.fr.WriteWindowUpdate(fr.StreamID, uint32(fr.Length)))
			}
		case *http2.HeadersFrame:
			if fr.StreamEnded() {
				ended++
			}
		}
	}
}

// TestScarceEndsWhoDoesNotRead sees that a connection on which nothing is read at all ends.
func TestScarceEndsWhoDoesNotRead(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	wide(c)
	for id := uint32(1); id < 8; id += 2 {
		c.headers(id, false, request()...)
		for b := message(strings.Repeat("x", 4<<20)); len(b) > 0; b = b[min(len(b), 1<<20):] {
			c.must(c.fr.WriteData(id, len(b) <= 1<<20, b[:min(len(b), 1<<20)]))
		}
	}
	poll(t, "the socket is full", func() bool { return writing(f) })
	f.memory.few.Store(true)
	poll(t, "the connection ends", func() bool { return len(f.s.conns.All()) == 0 })
}

func writing(f *fixture) bool {
	for _, c := range f.s.conns.All() {
		c.mu.Lock()
		since := c.writing
		c.mu.Unlock()
		if since != 0 && infer.Now()-since > int64(100*time.Millisecond) {
			return true
		}
	}
	return false
}

// taken waits until all that was written has come.
func taken(t *testing.T, c *conn) {
	t.Helper()
	poll(t, "all that was written has come", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		s, ok := listen.SentOn(c.nc, c.fd)
		return ok && s.Queued == 0 && !c.flushing && c.out.empty()
	})
}

// until is memory that is scarce for so many questions.
type until int

func (u *until) Pressed() bool {
	*u--
	return *u >= 0
}

// TestScarceDropsTheOldestFirst sees the order, and that no more is dropped than is needed.
func TestScarceDropsTheOldestFirst(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	sizes := []int{5000, 9000, 7000, 8000}
	for i, n := range sizes {
		c.call(uint32(2*i+1), strings.Repeat("o", n))
	}
	settled(t, f, len(sizes))
	sc := f.s.conns.All()[0]
	taken(t, sc)
	r := &relief{patience: 10, every: time.Hour}
	found := sc.look(100, r, nil)
	if len(found) > 0 {
		t.Fatalf("%d at the first look", len(found))
	}
	c.must(c.fr.WriteWindowUpdate(7, 2000)) // the last one moves
	poll(t, "it moved", func() bool {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		return sc.moved > 0
	})
	taken(t, sc)
	found = sc.look(109, r, found)
	if found = sc.look(110, r, found); len(found) != 3 {
		t.Fatalf("%d after the patience, want 3", len(found))
	}
	slices.SortFunc(found, func(a, b unmoved) int { return int(a.id) - int(b.id) })
	found[0].Since-- // the oldest is the smallest
	few := until(2)
	if n := drop(found, few.Pressed); n != 2 {
		t.Errorf("%d were dropped", n)
	}
	for id, want := range map[uint32]string{1: "reset ENHANCE_YOUR_CALM", 3: "reset ENHANCE_YOUR_CALM"} {
		if got := c.outcome(id); got != want {
			t.Errorf("stream %d: %s", id, got)
		}
	}
	if n := unsent(f); n != 2 {
		t.Errorf("%d still wait, want 2", n)
	}
}
