package sequence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// TestTranscripts replays testdata/*.txt: events in, decisions out. A line that begins
// with a blank is a decision, `#` begins a comment, and every other line is an event:
//
//	config slots=2 [oldest] [max=N] [instances=N] [idle=T] [util=F] [delay=T] [durable] [iterative] [limit=N]
//	  [wait=T] [scope=caller|none] [most=N] (sequences of each caller)
//	add NAME SEQUENCE [start] [end] [tenant=T] [caller=C] [weight=N] [shape=S] [deadline=T]
//	cancel NAME, at T, done I, repeat I (all of its batch ask for another execution), lost I, down I, up I, flush
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, replay)
}

// machine drives a Core as drive.Driver does.
type machine struct {
	core    *Core
	now     int64
	entries map[string]*queue.Entry
	names   map[*queue.Entry]string
	running map[int][]*queue.Entry
	lives   map[int]uint64
	limits  fakeLimits
	holds   holds
	out     bytes.Buffer
	// began and refused hear of batches, and of requests that are over without one.
	began   func(i int, batch []*queue.Entry)
	refused func(e *queue.Entry, err error)
}

// fakeLimits lets each caller have so many sequences; 0: any number.
type fakeLimits struct {
	most    int
	callers map[string]int
}

type fakeHold struct {
	limits *fakeLimits
	caller string
}

func (l *fakeLimits) BeginSequence(_ context.Context, req *infer.Request) (schedule.SequenceHold, error) {
	if l.most > 0 && l.callers[req.Caller] == l.most {
		return nil, fmt.Errorf("%s has %d sequences", req.Caller, l.most)
	}
	l.callers[req.Caller]++
	return fakeHold{l, req.Caller}, nil
}

func (h fakeHold) End() { h.limits.callers[h.caller]-- }

func newMachine(r rules) *machine {
	r.model, r.null = "m", &queue.Entry{Rows: 1}
	r.request = func(e *queue.Entry) *infer.Request { return e.Owner.(*infer.Request) }
	m := &machine{entries: map[string]*queue.Entry{}, names: map[*queue.Entry]string{r.null: "-"},
		running: map[int][]*queue.Entry{}, lives: map[int]uint64{}, limits: fakeLimits{callers: map[string]int{}}}
	r.held = m.holds.note
	m.core = newCore(r)
	m.began = func(i int, batch []*queue.Entry) {
		fmt.Fprintf(&m.out, "  instance %d gets", i)
		for _, e := range batch {
			fmt.Fprintf(&m.out, " %s", m.names[e])
		}
		fmt.Fprintln(&m.out)
	}
	m.refused = func(e *queue.Entry, err error) { fmt.Fprintf(&m.out, "  refuse %s: %v\n", m.names[e], err) }
	return m
}

func (m *machine) decide() {
	for {
		batch, i := m.core.Next(m.now, nil)
		if i < 0 {
			break
		}
		m.running[i], m.lives[i] = batch, m.core.Life(i)
		m.began(i, batch)
	}
}

// settle lets the timer fire and says when it has to again.
func (m *machine) settle() int64 {
	m.decide()
	at := m.core.Wake()
	for at != 0 && at <= max(m.now, 1) {
		for e := m.core.Expire(m.now); e != nil; e = m.core.Expire(m.now) {
			m.refused(e, m.core.Verdict(e))
		}
		m.decide()
		at = m.core.Wake()
	}
	return at
}

func (m *machine) add(e *queue.Entry, name string) {
	e.At = m.now
	m.entries[name], m.names[e] = e, name
	if r := m.core.request(e); r.SequenceStart && !m.core.iterative {
		b := begin(context.Background(), &m.limits, r)
		defer b.end()
		e.Group = b
	}
	var rival *queue.Entry
	if m.core.Full(e) {
		if rival = m.core.Yields(e); rival == nil {
			m.refused(e, fmt.Errorf("full"))
			return
		}
	}
	if err := m.core.Admit(e); err != nil {
		m.refused(e, err)
		return
	}
	if rival != nil {
		m.core.Remove(rival)
		m.refused(rival, fmt.Errorf("it gives way"))
	}
	m.core.Add(e)
}

func (m *machine) ended(i int) []*queue.Entry {
	batch := m.running[i]
	delete(m.running, i)
	return batch
}

var errWorker = errors.New("its worker ended")

func (m *machine) lost(i int) {
	batch := m.ended(i)
	m.core.Lost(i, m.lives[i], batch)
	for _, e := range batch {
		if e != m.core.null && (!m.core.durable || !m.core.Again(e)) {
			m.refused(e, errWorker)
		}
	}
}

func replay(t *testing.T, text []byte) []byte {
	var m *machine
	var out bytes.Buffer
	return transcript.Replay(t, text, &out, func(verb string, args []string) error {
		if verb == "config" {
			r, most, err := parseRules(args)
			m = newMachine(r)
			m.limits.most = most
			return err
		}
		if err := m.event(verb, args); err != nil {
			return err
		}
		at := m.settle()
		out.Write(m.out.Bytes())
		m.out.Reset()
		if m.core.Pending() > 0 || at != 0 {
			fmt.Fprintf(&out, "  %d wait", m.core.Pending())
			if at != 0 {
				fmt.Fprintf(&out, ", wake at %v", time.Duration(at))
			}
			fmt.Fprintln(&out)
		}
		return nil
	})
}

func parseRules(args []string) (r rules, limit int, err error) {
	r = rules{slots: 2, instances: 1, limit: 100}
	oldest, most := false, 0
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		var d time.Duration
		switch k {
		case "slots":
			r.slots, err = strconv.Atoi(v)
		case "instances":
			r.instances, err = strconv.Atoi(v)
		case "limit":
			r.limit, err = strconv.Atoi(v)
		case "max":
			most, err = strconv.Atoi(v)
		case "util":
			r.utilization, err = strconv.ParseFloat(v, 64)
		case "idle":
			d, err = time.ParseDuration(v)
			r.idle = int64(d)
		case "wait":
			d, err = time.ParseDuration(v)
			r.wait = int64(d)
		case "most":
			limit, err = strconv.Atoi(v)
		case "scope":
			r.scope, err = infer.ParseSequenceScope(v)
		case "delay":
			d, err = time.ParseDuration(v)
			r.delay = int64(d)
		case "oldest":
			oldest = true
		case "durable":
			r.durable = true
		case "iterative":
			r.iterative = true
		default:
			err = fmt.Errorf("unknown setting %q", k)
		}
		if err != nil {
			return r, limit, err
		}
	}
	if oldest {
		for range r.instances {
			r.cutters = append(r.cutters, dynamic.NewCutter(max(most, r.slots), nil, time.Duration(r.delay)))
		}
	}
	return r, limit, nil
}

func (m *machine) event(verb string, args []string) error {
	switch verb {
	case "flush":
		m.core.Flush()
		return nil
	case "add":
		return m.parseAdd(args)
	case "cancel":
		e := m.entries[args[0]]
		if !e.Waiting() {
			return fmt.Errorf("it does not wait")
		}
		m.core.Remove(e)
		return nil
	case "at":
		d, err := time.ParseDuration(args[0])
		m.now = int64(d)
		return err
	}
	i, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	switch verb {
	case "done", "repeat":
		batch := m.ended(i)
		m.core.Done(i, batch)
		for _, e := range batch {
			if verb == "repeat" && e != m.core.null && !m.core.Repeat(e) {
				return fmt.Errorf("%s may not be repeated", m.names[e])
			}
		}
	case "lost":
		m.lost(i)
	case "down":
		m.core.Down(i)
	case "up":
		m.core.Up(i)
	default:
		return fmt.Errorf("unknown event")
	}
	return nil
}

func (m *machine) parseAdd(args []string) error {
	r := &infer.Request{ID: args[0]}
	e := &queue.Entry{Rows: 1, Owner: r}
	if n, err := strconv.Atoi(args[1]); err == nil {
		r.Correlation.ID = uint64(n)
	} else {
		r.Correlation.Str = args[1]
	}
	for _, a := range args[2:] {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "start":
			r.SequenceStart = true
		case "end":
			r.SequenceEnd = true
		case "tenant":
			r.Tenant = v
		case "caller":
			r.Caller, e.Caller = v, v
		case "weight":
			n, err := strconv.Atoi(v)
			if err != nil {
				return err
			}
			e.Weight = n
		case "shape":
			e.Key = []byte(v)
		case "deadline":
			d, err := time.ParseDuration(v)
			if err != nil {
				return err
			}
			e.Deadline = int64(d)
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	m.add(e, args[0])
	return nil
}
