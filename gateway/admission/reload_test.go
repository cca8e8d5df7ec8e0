package admission

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/internal/configfile/configfiletest"
)

// TestReload: a limits file that is cut, emptied or removed lifts no limit.
func TestReload(t *testing.T) {
	configfiletest.Run(t, func(t *testing.T) configfiletest.Subject {
		s := configfiletest.Subject{File: filepath.Join(t.TempDir(), "limits.yaml"),
			First:   "rules:\n- {name: first, concurrency: 11}\n- {name: b, concurrency: 7}\n",
			Other:   "rules:\n- {name: other, concurrency: 12}\n- {name: b, concurrency: 7}\nweights: []\n",
			Nothing: "rules: []\n", Comment: "# none today\n"}
		if err := os.WriteFile(s.File, []byte(s.First), 0o600); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var heard []error
		l, err := New(t.Context(), s.File, Deps{Log: slog.New(slog.DiscardHandler), Reloaded: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, err)
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { l.Run(ctx); close(done) }()
		t.Cleanup(func() { stop(); <-done })
		s.Results = func() []error {
			mu.Lock()
			defer mu.Unlock()
			return heard
		}
		s.State = func() string {
			switch rules := l.generation.Load().rules.rules; {
			case len(rules) == 0:
				return "nothing"
			case len(rules) == 2 && rules[0].limits[0].Most > 10 && rules[1].limits[0].Most == 7:
				return rules[0].Name
			}
			return "a part"
		}
		return s
	})
}
