package fleet

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/configfile/configfiletest"
	"github.com/sluice-serve/sluice/xds"
)

// results are what was told of readings.
type results struct {
	mu  sync.Mutex
	all []error
}

func (r *results) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err)
}

func (r *results) list() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// runFleet runs a Fleet until t ends, and gives what it tells.
func runFleet(t *testing.T, cfg Config) (*sink, *results) {
	t.Helper()
	s, told := &sink{}, &results{}
	cfg.Interval, cfg.Timeout = 250*time.Millisecond, time.Second
	f, err := New(cfg, Deps{Server: s, Log: slog.New(slog.DiscardHandler), Reloaded: told.add,
		Sources: map[string]Source{"a": still{}, "b": still{}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, told
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestReload: a topology that is cut, emptied or removed takes no listener and no gateway away.
func TestReload(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		s := configfiletest.Subject{File: filepath.Join(t.TempDir(), "topology.yaml"),
			First:   "gateways:\n- {name: a, http: '127.0.0.1:1'}\n- {name: b, http: '127.0.0.1:2'}\nlisteners:\n- port: 10001\n",
			Other:   "gateways:\n- {name: a, http: '127.0.0.1:1'}\n- {name: b, http: '127.0.0.1:2'}\nlisteners:\n- port: 10002\n",
			Nothing: "gateways: []\nlisteners: []\n", Comment: "# none today\n"}
		write(t, s.File, s.First)
		sink, told := runFleet(t, Config{File: s.File})
		s.Results = func() []error { return told.list()[1:] } // the first is of the start
		s.State = func() string {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			switch top := sink.last; {
			case len(top.Gateways) == 0 && len(top.Listeners) == 0:
				return "nothing"
			case len(top.Gateways) == 2 && len(top.Listeners) == 1 && top.Listeners[0].Port == 10001:
				return "first"
			case len(top.Gateways) == 2 && len(top.Listeners) == 1 && top.Listeners[0].Port == 10002:
				return "other"
			}
			return "a part"
		}
		return s
	})
}

// TestReloadOfToken does the same to a file that the topology names.
func TestReloadOfToken(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		s := configfiletest.Subject{File: filepath.Join(t.TempDir(), "token"), First: "the-first-token\n", Other: "another-token\n"}
		write(t, s.File, s.First)
		b := base(xds.Gateway{Name: "a", HTTP: "127.0.0.1:1"})
		b.Upstream.TokenFile = s.File
		sink, told := runFleet(t, Config{Base: b})
		s.Results = func() []error { return told.list()[1:] }
		s.State = func() string {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			switch string(sink.files[s.File]) {
			case s.First:
				return "first"
			case s.Other:
				return "other"
			}
			return "a part"
		}
		return s
	})
}

// TestSectionsThatGo: a topology that loses what stands at its top, as one that is cut between
// two lines does, is refused unless it says so.
func TestSectionsThatGo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	gateways := "gateways:\n- {name: a, http: '127.0.0.1:1'}\n"
	routes := "routes:\n- {model: m, targets: [{group: canary}]}\n"
	for _, c := range []struct {
		name, text string
		good       bool
	}{
		{"no routes", gateways, false},
		{"routes without content", gateways + "routes:\n", false},
		{"no routes, in words", gateways + "routes: []\n", true},
		{"no services, no gateways", routes, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			write(t, file, gateways+routes)
			f, err := New(Config{File: file}, Deps{Server: &sink{}, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			write(t, file, c.text)
			var all error
			now := time.Now()
			for range 8 {
				now = now.Add(time.Second)
				_, err := f.files.look(now)
				all = errors.Join(all, err)
			}
			if got := len(f.files.topology.Routes) == 0; got != c.good || (all == nil) != c.good {
				t.Errorf("the routes are gone: %v, %v; want %v", got, all, c.good)
			}
		})
	}
}

// TestStartWithNothing: a file that says nothing ends the start.
func TestStartWithNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "topology.yaml")
	for _, text := range []string{"", "\n", "# none\n", "{}\n", "null\n", "gateways:\nroutes:\n"} {
		write(t, file, text)
		if _, err := New(Config{File: file}, Deps{}); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
