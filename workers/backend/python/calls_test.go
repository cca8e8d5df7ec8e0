package python

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// gateway is one that the test is. Model echo gives its input, stream gives it a hundred times, fails fails.
type gateway struct {
	hanging, ended chan struct{} // of model hangs

	mu      sync.Mutex
	said    []string  // guarded by mu
	metrics []float64 // guarded by mu
}

func (g *gateway) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, fmt.Sprintf(format, args...))
}

func (g *gateway) Infer(ctx context.Context, c *backend.Call, each func(*backend.Answer) error) error {
	out := slices.Clone(c.Inputs)
	out[0].Name = "OUT"
	answers := 1
	switch c.Model {
	case "fails":
		return infer.Errorf(infer.Unavailable, "it fails")
	case "hangs":
		close(g.hanging)
		<-ctx.Done()
		close(g.ended)
		return context.Cause(ctx)
	case "stream":
		answers = 100
	}
	g.note("call %s %s %v", c.Model, c.ID, c.Stream)
	for i := range answers {
		if err := each(&backend.Answer{Outputs: out, Final: i == answers-1}); err != nil {
			return err
		}
	}
	return nil
}

func (g *gateway) Load(_ context.Context, model, config string, files map[string][]byte) error {
	g.note("load %s %q %q", model, config, files)
	return nil
}

func (g *gateway) Unload(_ context.Context, model string, _ bool) error {
	g.note("unload %s", model)
	return nil
}

func (g *gateway) Ready(_ context.Context, model, _ string) (bool, error) {
	return model == "echo", nil
}

func (g *gateway) Log(level backend.LogLevel, text string) { g.note("log %d %s", level, text) }

func (g *gateway) Metric(_ context.Context, m *backend.Metric) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.metrics = append(g.metrics, m.Value)
	return nil
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("after %v not: %s", within, what)
	}
}

func TestCalls(t *testing.T) {
	g := &gateway{hanging: make(chan struct{}), ended: make(chan struct{})}
	spec := specOf(t, "calls", nil)
	spec.Gateway = g
	in := loaded(t, open(t), spec)
	for _, row := range []struct {
		what, want float32
		said       string
	}{{1, 1 << 20, "call echo r1 false"}, {2, 100, "call stream r1 true"}, {3, 4, ""}, {4, 2, `load echo "" map[]`}} {
		a, _ := ask(in, row.what)
		if a.Err != nil {
			t.Fatalf("%v: %v", row.what, a.Err)
		}
		if got := math.Float32frombits(binary.LittleEndian.Uint32(a.Responses[0].Outputs[0].Data)); got != row.want {
			t.Errorf("%v: got %v, want %v", row.what, got, row.want)
		}
		g.mu.Lock()
		if row.said != "" && !slices.Contains(g.said, row.said) {
			t.Errorf("%v: the gateway was asked for %q, want %q", row.what, g.said, row.said)
		}
		g.mu.Unlock()
	}
	g.mu.Lock()
	if !slices.ContainsFunc(g.said, func(s string) bool {
		return strings.HasPrefix(s, "log 1 model.py:") &&
			strings.HasSuffix(s, "] four")
	}) {
		t.Errorf("the gateway was told %q, want a warning", g.said)
	}
	g.mu.Unlock()
	eventually(t, "the metric at the gateway", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		sum := 0.0
		for _, v := range g.metrics {
			sum += v
		}
		return sum == 2
	})
	in.mu.Lock()
	r := in.run
	in.mu.Unlock()
	eventually(t, "no memory in use", func() bool { return r.channel.Exchange.InUse() == 0 })
}

// What a process has asked for ends with it.
func TestCallsEndWithTheProcess(t *testing.T) {
	g := &gateway{hanging: make(chan struct{}), ended: make(chan struct{})}
	spec := specOf(t, "calls", nil)
	spec.Gateway = g
	in := loaded(t, open(t), spec)
	done := make(chan error, 1)
	go func() {
		a, _ := ask(in, 5)
		done <- a.Err
	}()
	await(t, "the call", g.hanging)
	if err := syscall.Kill(in.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the call", g.ended)
	if err := <-done; infer.ReasonOf(err) != infer.ReasonWorkerLost {
		t.Errorf("the request: %v, want worker_lost", err)
	}
}

// A process that asks without end and reads no reply meanwhile fills both rings: the worker reads on, and every reply
// is there when the process reads.
func TestBothRingsFull(t *testing.T) {
	const asked = 20_000 // frames of either ring are more than four times as much as fits
	var replies atomic.Int64
	in, _ := faked(t, nil, func(f *fake, id uint64, _ []uint64) {
		for n := range uint64(asked) {
			f.write(t, f.events, channel.Control, n+1, func(e *channel.Encoder) {
				e.U8(controlMetric)
				e.U64(0)
				e.String("a metric that nobody has")
				e.String("{}")
				e.U32(0)
			})
		}
		ring := f.channel.Reader(channel.Replies)
		for n := range uint64(asked) {
			a, err := ring.Next()
			if err != nil || a.Kind != channel.Reply || a.ID != n+1 || a.Body[0] != 0 {
				t.Errorf("reply %d: %+v, %v", n+1, a, err)
				break
			}
			replies.Add(1)
		}
		f.write(t, f.results, channel.Result, id, goodResult)
	})
	done := make(chan error, 1)
	go func() {
		a, _ := ask(in, 1)
		done <- a.Err
	}()
	if err := ended(t, done); err != nil || replies.Load() != asked {
		t.Errorf("%d replies, %v; want %d", replies.Load(), err, asked)
	}
}

// A process that never reads its replies is ended, before they take much memory.
func TestRepliesThatNobodyReads(t *testing.T) {
	in, last := faked(t, nil, func(f *fake, _ uint64, _ []uint64) {
		name := strings.Repeat("x", 100_000)
		for n := uint64(1); !f.killed.Load(); n++ {
			f.write(t, f.events, channel.Control, n, func(e *channel.Encoder) {
				e.U8(controlMetric)
				e.U64(0)
				e.String(name)
				e.String("{}")
				e.U32(0)
			})
		}
	})
	f := last()
	if a, _ := ask(in, 1); infer.ReasonOf(a.Err) != infer.ReasonWorkerLost ||
		!strings.Contains(a.Err.Error(), "without reading them") || !f.killed.Load() {
		t.Errorf("the request: %v", a.Err)
	}
}

// More calls at a time than a process may have open, none of whose answers is read while they are made.
func TestFloodOfCalls(t *testing.T) {
	spec := specOf(t, "calls", nil)
	spec.Gateway = &gateway{}
	in := loaded(t, open(t), spec)
	done := make(chan error, 1)
	go func() {
		a, _ := ask(in, 6)
		if a.Err == nil {
			if got := math.Float32frombits(binary.LittleEndian.Uint32(a.Responses[0].Outputs[0].Data)); got != 4000 {
				a.Err = fmt.Errorf("%v calls have ended, want 4000", got)
			}
		}
		done <- a.Err
	}()
	if err := ended(t, done); err != nil {
		t.Error(err)
	}
}

// ended gives what comes, and ends the test where nothing does.
func ended(t *testing.T, done <-chan error) error {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.Fatalf("no answer after %v", within)
	}
	return nil
}

// A call for a request that has ended is not the model's own: it would be executed as somebody else.
func TestCallOfEndedRequest(t *testing.T) {
	in, _ := faked(t, nil, func(*fake, uint64, []uint64) {})
	in.run.model().spec.Gateway = &gateway{}
	if _, err := in.run.gateway(7 << 16); infer.ReasonOf(err) != infer.ReasonCancelled {
		t.Errorf("for a request that has ended: %v", err)
	}
	if g, err := in.run.gateway(0); g == nil || err != nil {
		t.Errorf("for the model itself: %v, %v", g, err)
	}
}

// Failures of calls have the words that callers know of Triton, and keep their code and reason.
func TestCallErrors(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"unknown": {infer.Errorf(infer.NotFound, "Request for unknown model: 'm' is not found"),
			"Model m - Error when running inference: Failed for execute the inference request. Model 'm' is not ready."},
		"not ready": {infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "loading"),
			"Model m - Error when running inference: Failed for execute the inference request. Model 'm' is not ready."},
		"memory": {infer.Refusef(infer.Unavailable, infer.ReasonMemory, "no room for 5 bytes"),
			"Failed to increase the shared memory pool size for key 'm': no room for 5 bytes"},
		"too large": {infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge, "a request of 5 bytes never fits"),
			"Failed to increase the shared memory pool size for key 'm': a request of 5 bytes never fits"},
		"its own": {infer.Errorf(infer.Internal, "no"), "no"},
	} {
		got := callError(&backend.Call{Model: "m"}, row.err)
		if got.Error() != row.want || infer.CodeOf(got) != infer.CodeOf(row.err) || infer.ReasonOf(got) != infer.ReasonOf(row.err) {
			t.Errorf("%s: got %q, %v, %q", name, got, infer.CodeOf(got), infer.ReasonOf(got))
		}
	}
}
