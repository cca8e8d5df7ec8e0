package h2

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// tagger is a Method that answers with its call's tag and its message, and with the tag in
// a trailer, at once or later, and notices a context that is not its call's.
type tagger struct {
	memory *heap
	reused atomic.Int64
	odd    atomic.Int64 // calls whose end or deadline was not theirs when they began
}

type taggedCall struct {
	m      *tagger
	st     *Stream
	memory *infer.Buffer
	tag    string
	ok     bool
}

func (m *tagger) Begin(ctx context.Context, old Call) (Call, error) {
	call, ok := old.(*taggedCall)
	if ok {
		m.reused.Add(1)
	} else {
		call = &taggedCall{}
	}
	st, _ := FromContext(ctx)
	if !ownTime(st) {
		m.odd.Add(1)
	}
	*call = taggedCall{m: m, st: st, tag: st.Header("tag")}
	return call, nil
}

// ownTime says that a call which begins has the deadline that its client gave it (its header
// "within"; there is none without it), and has not ended, but by that deadline: a short one
// may pass before the call begins.
func ownTime(st *Stream) bool {
	err := st.Err() // before the clock is read
	at, timed := st.Deadline()
	within, given := time.Duration(0), st.Header("within") != ""
	if given {
		ns, bad := strconv.ParseInt(st.Header("within"), 10, 64)
		if bad != nil {
			return false
		}
		within = time.Duration(ns)
	}
	// A client sends what is left of what it was given, rounded up to microseconds at most.
	left := time.Until(at)
	switch {
	case timed != given, given && left > within+time.Microsecond, within >= patient && left < patient/2:
		return false
	case err != nil:
		return err == context.DeadlineExceeded && timed && left <= 0
	}
	return true
}

// patient is a deadline that no call of a test meets.
const patient = 30 * time.Second

func (c *taggedCall) Memory(n int64, _ []byte) (*infer.Buffer, error) { return c.m.memory.Body(n) }

func (c *taggedCall) Quick() bool { return true }

func (c *taggedCall) Start(memory *infer.Buffer, message []byte) func() {
	c.memory = memory
	answer := func() {
		part := mem.SliceBuffer(c.tag + " " + string(message))
		c.memory.Release()
		if c.ok = c.st.Err() == nil; !c.ok {
			infer.Flush(c.st.Answer(nil, status.FromContextError(c.st.Err()).Err()))
			return
		}
		c.st.SetTrailer("tag", c.tag)
		infer.Flush(c.st.Answer(mem.BufferSlice{part}, nil))
	}
	switch c.st.Header("do") {
	case "later":
		go answer()
	case "wait":
		return answer
	case "leave": // the goroutine goes, before the answer or behind it
		return func() { go answer() }
	default:
		answer()
	}
	return nil
}

func (c *taggedCall) Sent() bool { return c.ok }

func (c *taggedCall) Abort(error) {}

// startTagger adds a tagger to a server.
func startTagger(t *testing.T) (*fixture, *tagger) {
	f := start(t, nil)
	m := &tagger{memory: f.memory}
	f.s.methods["/test.Echo/Tag"] = &method{name: "/test.Echo/Tag", hot: m} // nobody has called yet
	return f, m
}

// TestMemoryIsUsedAgain sees that calls one after the other use memory again, whatever is
// between them that can't be.
func TestMemoryIsUsedAgain(t *testing.T) {
	f, m := startTagger(t)
	c := hello(t, f)
	kept := 0
	for i := 0; i < 50 || i < 5000 && (m.reused.Load() < 10 || kept == 0); i++ {
		id := uint32(2*i + 1)
		do := []string{"now", "later", "now", "wait", "now"}[i%5]
		c.together(func() { c.call(id, "x", ":path", "/test.Echo/Tag", "tag", fmt.Sprint(i), "do", do) })
		if got, want := c.outcome(id), fmt.Sprintf("0 %d x", i); got != want {
			t.Fatalf("call %d: got %q, want %q", i, got, want)
		}
		kept = asNew(t, f.s.conns.All()[0])
	}
	if m.reused.Load() < 10 || kept == 0 {
		t.Errorf("%d calls used memory again, %d are kept", m.reused.Load(), kept)
	}
}

// together sends frames in one piece: a call whose message comes behind its head in time
// waits on a goroutine, and leaves no memory.
func (c *rawConn) together(send func()) {
	c.t.Helper()
	var b bytes.Buffer
	fr := c.fr
	c.fr = http2.NewFramer(&b, c.nc)
	send()
	c.fr = fr
	c.write(b.String())
}

// asNew sees that what a connection keeps of its calls is as new, and says how many those are.
func asNew(t *testing.T, c *conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, st := range c.free {
		if !reflect.DeepEqual(&st.record, &record{c: c}) || st.Err() != nil {
			t.Errorf("got %+v", &st.record)
		}
	}
	return len(c.free)
}

// TestWhatWasResetIsNotUsedAgain resets a call whose answer waits for its window: who reset
// it may look at it once more.
func TestWhatWasResetIsNotUsedAgain(t *testing.T) {
	f, m := startTagger(t)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
	c.together(func() {
		c.call(1, "too long for the window", ":path", "/test.Echo/Tag", "tag", "a", "do", "now")
		c.must(c.fr.WriteRSTStream(1, http2.ErrCodeCancel))
		c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}))
		c.call(3, "y", ":path", "/test.Echo/Tag", "tag", "b", "do", "now")
	})
	if got := c.outcome(3); got != "0 b y" {
		t.Fatalf("got %q", got)
	}
	cn := f.s.conns.All()[0]
	kept := 0
	poll(t, "the second one's memory is kept", func() bool {
		cn.mu.Lock()
		defer cn.mu.Unlock()
		kept = len(cn.free)
		return kept > 0
	})
	if kept != 1 || m.reused.Load() != 0 {
		t.Errorf("the memory of %d calls is kept, %d were used again", kept, m.reused.Load())
	}
}

// TestCallsAreNotMixedUp has many calls on few connections, of which some are reset, some
// run out of time and some have answers that wait for a window: each hears its own.
func TestCallsAreNotMixedUp(t *testing.T) {
	f, m := startTagger(t)
	var wg sync.WaitGroup
	var served atomic.Int64
	for i := range 2 {
		cc := f.dial(t, grpc.WithStaticStreamWindowSize(65535))
		for k := range 12 {
			draw := rand.New(rand.NewPCG(uint64(i), uint64(k)))
			wg.Go(func() {
				for n := range 60 {
					tag := fmt.Sprintf("%d-%d-%d", i, k, n)
					if oneTagged(t, cc, draw, tag) {
						served.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := m.odd.Load(); n > 0 {
		t.Errorf("%d calls began with another's end or deadline", n)
	}
	if served.Load() < 500 || m.reused.Load() < 20 {
		t.Errorf("%d calls were served, %d used memory again", served.Load(), m.reused.Load())
	}
}

// TestAnswersAreWritten has calls alone on their connection, so that nothing but the call
// itself has its answer written, whoever is the last at it: the reading goroutine, one of the
// crew, or who answers.
func TestAnswersAreWritten(t *testing.T) {
	f, _ := startTagger(t)
	cc := f.dial(t)
	draw := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for n := range 600 {
		do, size := []string{"now", "later", "wait", "leave"}[draw.IntN(4)], []int{1, onReader, onReader + 1, 100 << 10}[draw.IntN(4)]
		body, out := make([]byte, size), []byte(nil)
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "tag", "t", "do", do), 5*time.Second)
		err := cc.Invoke(ctx, "/test.Echo/Tag", &body, &out)
		if cancel(); err != nil || len(out) != size+2 {
			t.Fatalf("call %d, %q with %d bytes: %v, %d bytes", n, do, size, err, len(out))
		}
	}
}

// oneTagged makes one call and looks at its answer; false: it was not served.
func oneTagged(t *testing.T, cc *grpc.ClientConn, draw *rand.Rand, tag string) bool {
	ctx := metadata.AppendToOutgoingContext(t.Context(), "tag", tag, "do", []string{"now", "later", "wait", "leave"}[draw.IntN(4)])
	if k := draw.IntN(4); k < 2 {
		within := patient
		if k == 0 {
			within = time.Duration(draw.IntN(20_000)) * time.Microsecond
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "within", strconv.FormatInt(int64(within), 10)), within)
		defer cancel()
	}
	body := []byte(tag)
	if draw.IntN(10) == 0 {
		body = make([]byte, 100<<10) // its answer does not fit the window
	}
	var out []byte
	var trailer metadata.MD
	err := cc.Invoke(ctx, "/test.Echo/Tag", &body, &out, grpc.Trailer(&trailer))
	switch code := status.Code(err); {
	case code == codes.DeadlineExceeded || code == codes.Canceled:
		return false
	case err != nil:
		t.Errorf("%s: %v", tag, err)
		return false
	}
	if string(out) != tag+" "+string(body) || len(trailer["tag"]) != 1 || trailer["tag"][0] != tag {
		t.Errorf("%s: got %.40q of %d bytes, trailer %v", tag, out, len(out), trailer)
	}
	return true
}

// TestRestKeepsNoMemory sees that a connection which rests gives back what its calls left.
func TestRestKeepsNoMemory(t *testing.T) {
	f := start(t, func(c *Config) { c.WriteTimeout = 100 * time.Millisecond })
	c := hello(t, f)
	c.together(func() { c.call(1, "x", "do", "now") })
	if got := c.outcome(1); got != "0 x" {
		t.Fatalf("got %q", got)
	}
	poll(t, "nothing is kept", func() bool {
		cn := f.s.conns.All()[0]
		cn.mu.Lock()
		defer cn.mu.Unlock()
		return cn.free == nil && infer.Now()-cn.heard.Load() > int64(cn.watchEvery())
	})
}
