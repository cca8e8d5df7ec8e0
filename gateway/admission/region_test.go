package admission

import (
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// Inputs in the caller's shared memory are paid for as if they had been sent, whether the
// length of the body was announced, as over HTTP, or not, as over gRPC.
func TestRegionsArePaid(t *testing.T) {
	for _, announced := range []int64{100, -1} {
		now := int64(time.Hour)
		l := limits(t, "rules: [{name: shared, bytes: {rate: 1KB/s, burst: 10KB}}]", func() int64 { return now })
		passed := 0
		for range 5 {
			env := &infer.Envelope{Action: infer.ActionInference, Model: "m", BodySize: announced}
			req := &infer.Request{Model: "m", Envelope: env, Inputs: []infer.Tensor{{Shape: []int64{1, 4000}, Place: infer.Place{Region: 1, Size: 4000}}}}
			if err := l.Open(t.Context(), env); err == nil && l.Request(t.Context(), req) == nil {
				passed++
			}
			l.Close(env, &infer.End{Request: req, Received: 100})
		}
		if passed != 2 {
			t.Errorf("announced %d: %d requests with 4000 bytes in regions passed, want 2", announced, passed)
		}
	}
}
