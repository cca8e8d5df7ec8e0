package infer_test

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// What a picker writes a gateway reads; what nobody writes says nothing.
func TestPlacementText(t *testing.T) {
	key := infer.SequenceKey("found:a/b c", "my/model", "", infer.SequenceID(infer.Correlation{Str: "é 1/2"}))
	if scope, model, version, id, ok := infer.ParseSequenceKey(key); !ok || scope != "found:a/b c" || model != "my/model" || version != "" || id != "s:é 1/2" {
		t.Errorf("%s is %q %q %q %q %v", key, scope, model, version, id, ok)
	}
	for _, p := range []infer.Placement{{}, {Key: key, Epoch: 7}, {Key: key, Epoch: 7, Unknown: true}, {Stream: 1, Scope: "a b"}, {Stream: 1},
		{Stream: 1, Scope: "a b", Key: key, Epoch: 9}, {Stream: 1, Key: key, Epoch: 9}} {
		got := infer.ParsePlacement(strings.TrimSpace(p.String())) // as headers are
		if got == nil || got.Stream != 0 != (p.Stream != 0) {
			t.Errorf("%q: %+v", p.String(), got)
			continue
		}
		got.Stream = p.Stream
		if *got != p {
			t.Errorf("%q: %+v, want %+v", p.String(), got, p)
		}
	}
	if p := infer.ParsePlacement(""); p != nil {
		t.Errorf("no header: %+v", p)
	}
	for _, text := range []string{"none", "x", "1", "1 ", "-1 k", "18446744073709551616 k", "unknown", "unknown k", "stream %zz", "unknown  k"} {
		if p := infer.ParsePlacement(text); p == nil || *p != (infer.Placement{}) {
			t.Errorf("%q: %+v", text, p)
		}
	}
	for _, text := range []string{"", "a/b/c", "a/b/c/d/e", "%zz/b/c/d", strings.Repeat("a", 5000) + "/b/c/d"} {
		if _, _, _, _, ok := infer.ParseSequenceKey(text); ok {
			t.Errorf("%.20q is a key", text)
		}
	}
}

// Epochs grow, also beyond what another process made.
func TestEpochs(t *testing.T) {
	last := infer.NewEpoch(0)
	for range 1000 {
		next := infer.NewEpoch(0)
		if next <= last {
			t.Fatalf("%d after %d", next, last)
		}
		last = next
	}
	if far := last + 1e15; infer.NewEpoch(far) <= far || infer.NewEpoch(0) <= far {
		t.Error("an epoch is not newer than what it was to follow")
	}
}
