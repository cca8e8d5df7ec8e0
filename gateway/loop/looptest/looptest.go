// Package looptest has loops for tests of what they serve.
package looptest

import (
	"log/slog"
	"testing"

	"github.com/sluice-serve/sluice/gateway/loop"
)

// Start starts a loop that ends with the test, after what is cleaned up before.
func Start(t testing.TB) *loop.Loop {
	t.Helper()
	l, err := loop.New(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
