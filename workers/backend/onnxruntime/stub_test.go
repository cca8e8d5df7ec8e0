//go:build !(onnxruntime && cgo)

package onnxruntime

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

func TestBuildWithoutONNXRuntimeSaysSo(t *testing.T) {
	b, err := New("libonnxruntime.so")(nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.Info().Unavailable == "" {
		t.Error("Info().Unavailable is empty")
	}
	if _, err := b.Load(t.Context(), backend.Spec{}); infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("Load: %v, want Unavailable", err)
	}
}
