package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestResetsCount(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	r := resets{conn: a, left: resetBurst}
	now := time.Unix(1000, 0)
	for range resetBurst {
		r.count(now)
	}
	for range 10 { // at the rate that may last
		now = now.Add(time.Second)
		for range resetRate {
			r.count(now)
		}
	}
	if err := a.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatalf("cut off too soon: %v", err)
	}
	r.count(now)
	if err := a.SetDeadline(time.Now().Add(time.Second)); err != io.ErrClosedPipe {
		t.Errorf("one too many: %v", err)
	}
}

// What counts is a call over HTTP/2 whose client has left when it ends.
func TestWhatCountsAsReset(t *testing.T) {
	h := &handler{api: newFakeAPI(&fake{}, APIConfig{}), timeout: time.Minute, rate: 1}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	for _, tc := range []struct {
		name  string
		major int
		left  bool
		want  float64
	}{{"answered", 2, false, 0}, {"reset", 2, true, 1}, {"over HTTP/1.1", 1, true, 0}} {
		ctx, cancel := context.WithCancel(connContext(t.Context(), a))
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v2/health/live", nil)
		r.ProtoMajor = tc.major
		if tc.left {
			cancel()
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		cancel()
		info, ok := ctx.Value(connKey{}).(*connInfo)
		if !ok || info.resets.left != resetBurst-tc.want {
			t.Errorf("%s: %v of %d are left", tc.name, info, resetBurst)
		}
	}
}
