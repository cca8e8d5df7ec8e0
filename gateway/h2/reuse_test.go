package h2

import (
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A registered service's call has nothing of the method's call whose memory it got.
func TestReuseForAnotherMethod(t *testing.T) {
	f := start(t, nil)
	cc := f.dial(t)
	for range 3 {
		for range 5 {
			if _, err := call(t.Context(), cc, []byte("small")); err != nil {
				t.Fatal(err)
			}
		}
		r, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Fatal(r, err)
		}
	}
}
