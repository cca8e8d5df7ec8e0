package redis

import (
	"log/slog"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
)

func wait(t *testing.T, d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// open makes a level on a port.
func open(t *testing.T, port string, change func(*Config)) *Cache {
	t.Helper()
	cfg, err := ParseConfig(map[string]string{"host": "127.0.0.1", "port": port, "budget": "200"})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(t.Context(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// rig is a level that the test's end closes.
func rig(t *testing.T, port string, change func(*Config)) (*Cache, *cachetest.Rig) {
	c := open(t, port, change)
	t.Cleanup(func() {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return c, &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
}
