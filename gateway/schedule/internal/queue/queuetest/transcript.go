// Package queuetest runs transcripts of the pure state machines: events in, decisions
// out. A line that begins with a blank is a decision, `#` begins a comment, and every
// other line is an event:
//
//	config max=8 preferred=4,8 delay=100us instances=2 limit=10 [delays] [fair=N] [own=LEVEL:LIMIT[:delays]]
//	add NAME [rows=N] [shape=S] [deadline=T] [level=N] [by=CALLER[:WEIGHT]]   a request comes; limits may refuse it, or
//	                                           another in its place
//	cancel NAME                                its caller leaves
//	at T                                       time passes until T
//	done I                                     instance I brings its results
//	lost I                                     the worker of instance I ended
//	down I, up I                               instance I goes, comes
//	flush                                      no request follows
//
// Times count from zero: 150us, 2ms.
package queuetest

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/internal/transcript"
)

// Config is what a transcript's config line says.
type Config struct {
	Max       int
	Preferred []int
	Delay     time.Duration
	Instances int
	Lines     queue.Lines
}

// Run checks every testdata/*.txt of the caller's package; with update set it rewrites
// them instead.
func Run(t *testing.T, update *bool, cutter func(Config) queue.Cutter) {
	t.Helper()
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte { return replay(t, text, cutter) })
}

type machine struct {
	cutter  func(Config) queue.Cutter
	core    *queue.Core
	now     int64
	entries map[string]*queue.Entry
	names   map[*queue.Entry]string
	running map[int][]*queue.Entry
	lives   map[int]uint64
	out     bytes.Buffer
}

func replay(t *testing.T, text []byte, cutter func(Config) queue.Cutter) []byte {
	m := &machine{cutter: cutter}
	return transcript.Replay(t, text, &m.out, func(verb string, args []string) error {
		err := m.event(verb, args)
		if err == nil && verb != "config" {
			m.decide()
		}
		return err
	})
}

func (m *machine) event(verb string, args []string) error {
	if verb == "flush" {
		m.core.Flush()
		return nil
	}
	if len(args) == 0 && verb != "config" {
		return fmt.Errorf("%s needs more", verb)
	}
	switch verb {
	case "config":
		return m.config(args)
	case "add":
		return m.add(args[0], args[1:])
	case "cancel":
		m.core.Remove(m.entries[args[0]])
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
	case "done":
		m.core.Done(i, m.running[i])
		delete(m.running, i)
	case "lost":
		m.lost(i)
	case "down":
		m.core.Down(i)
	case "up":
		m.core.Up(i)
	default:
		return fmt.Errorf("unknown event %q", verb)
	}
	return nil
}

func (m *machine) lost(i int) {
	batch := m.running[i]
	delete(m.running, i)
	m.core.Lost(i, m.lives[i], batch)
	for _, e := range batch {
		if !m.core.Again(e) {
			fmt.Fprintf(&m.out, "  refuse %s: ended two workers\n", m.names[e])
		}
	}
}

func (m *machine) config(args []string) error {
	c := Config{Instances: 1, Lines: queue.Lines{Default: queue.Line{Limit: 100}, Own: map[uint64]queue.Line{}}}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		var err error
		switch k {
		case "max":
			c.Max, err = strconv.Atoi(v)
		case "limit":
			c.Lines.Default.Limit, err = strconv.Atoi(v)
		case "delays":
			c.Lines.Default.Delays = true
		case "fair":
			c.Lines.Fair, err = strconv.Atoi(v)
		case "own":
			err = own(c.Lines.Own, v)
		case "instances":
			c.Instances, err = strconv.Atoi(v)
		case "delay":
			c.Delay, err = time.ParseDuration(v)
		case "preferred":
			for p := range strings.SplitSeq(v, ",") {
				n, err := strconv.Atoi(p)
				if err != nil {
					return err
				}
				c.Preferred = append(c.Preferred, n)
			}
		default:
			err = fmt.Errorf("unknown setting %q", k)
		}
		if err != nil {
			return err
		}
	}
	m.core = queue.New(m.cutter(c), c.Lines, c.Instances)
	m.now = 0
	m.entries, m.names = map[string]*queue.Entry{}, map[*queue.Entry]string{}
	m.running, m.lives = map[int][]*queue.Entry{}, map[int]uint64{}
	return nil
}

// own reads LEVEL:LIMIT or LEVEL:LIMIT:delays.
func own(lines map[uint64]queue.Line, v string) error {
	parts := strings.Split(v, ":")
	if len(parts) < 2 {
		return fmt.Errorf("%q is not LEVEL:LIMIT", v)
	}
	level, err := strconv.ParseUint(parts[0], 10, 64)
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(parts[1])
	lines[level] = queue.Line{Limit: limit, Delays: len(parts) > 2 && parts[2] == "delays"}
	return err
}

func (m *machine) add(name string, args []string) error {
	e := &queue.Entry{Rows: 1, At: m.now}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "rows":
			n, err := strconv.Atoi(v)
			if err != nil {
				return err
			}
			e.Rows = n
		case "shape":
			e.Key = []byte(v)
		case "deadline":
			d, err := time.ParseDuration(v)
			if err != nil {
				return err
			}
			e.Deadline = int64(d)
		case "level":
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return err
			}
			e.Level = n
		case "by":
			var weight string
			e.Caller, weight, _ = strings.Cut(v, ":")
			if weight != "" {
				n, err := strconv.Atoi(weight)
				if err != nil {
					return err
				}
				e.Weight = n
			}
		default:
			return fmt.Errorf("unknown setting %q", k)
		}
	}
	m.entries[name], m.names[e] = e, name
	if m.core.Full(e) {
		rival := m.core.Yields(e)
		if rival == nil {
			fmt.Fprintf(&m.out, "  refuse %s: full\n", name)
			return nil
		}
		fmt.Fprintf(&m.out, "  refuse %s: gives way to %s\n", m.names[rival], name)
		m.core.Remove(rival)
	}
	m.core.Add(e)
	return nil
}

func (m *machine) decide() {
	for e := m.core.Expire(m.now); e != nil; e = m.core.Expire(m.now) {
		fmt.Fprintf(&m.out, "  refuse %s: timed out\n", m.names[e])
	}
	for {
		batch, i := m.core.Next(m.now, nil)
		if i < 0 {
			break
		}
		rows, words := 0, make([]string, len(batch))
		for k, e := range batch {
			rows += e.Rows
			words[k] = m.names[e]
		}
		fmt.Fprintf(&m.out, "  instance %d gets %s (%d rows)\n", i, strings.Join(words, " "), rows)
		m.running[i], m.lives[i] = batch, m.core.Life(i)
	}
	if n := m.core.Pending(); n > 0 {
		fmt.Fprintf(&m.out, "  %d wait", n)
		if at := m.core.Wake(); at != 0 {
			fmt.Fprintf(&m.out, ", wake at %v", time.Duration(at))
		}
		fmt.Fprintln(&m.out)
	}
}
