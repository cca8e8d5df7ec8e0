package rls

import (
	"context"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	ratelimitcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestPathsTakeNoMemory: a path of nothing but slashes is not cut into millions of parts.
func TestPathsTakeNoMemory(t *testing.T) {
	path := "/v2/models/m/infer" + strings.Repeat("/", 3<<20)
	for _, path := range []string{path, strings.Repeat("/x", 2<<20), "/v2/models/" + strings.Repeat("%41/", 1<<20)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Target("POST", path)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%.30q… took %d KiB", path, took>>10)
		}
	}
}

// TestHostileQuestions: names, hits and sizes stay in their bounds whatever a question says,
// and nothing of a question that is cancelled or refused stays.
func TestHostileQuestions(t *testing.T) {
	var mu sync.Mutex
	var calls []Call
	c := dial(t, func(_ context.Context, call Call) Verdict {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
		return Verdict{Rule: "r", Rate: math.Inf(1), Left: math.MaxInt64, Over: call.Model == "over", Retry: math.MaxInt64}
	})
	most := descriptor("principal", "\x00", "model", "over", "group", "a\x00b", "bytes", "9223372036854775807",
		"remote_address", "fe80::1%eth0")
	most.HitsAddend = wrapperspb.UInt64(math.MaxUint64)
	cut := descriptor("principal", strings.Repeat("x", maxValue-1)+"é", "model", strings.Repeat("é", maxValue))
	groups := &ratelimitcommonv3.RateLimitDescriptor{}
	for range maxEntries {
		groups.Entries = append(groups.Entries, &ratelimitcommonv3.RateLimitDescriptor_Entry{Key: "group",
			Value: strings.Repeat("g", 40000)})
	}
	for _, d := range []*ratelimitcommonv3.RateLimitDescriptor{most, cut, groups, {}, descriptor("", ""),
		descriptor("path", strings.Repeat("/", 1<<20))} {
		for _, domain := range []string{"", "nobody knows", strings.Repeat("d", 1<<20)} {
			req := &ratelimitv3.RateLimitRequest{Domain: domain, HitsAddend: math.MaxUint32,
				Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{d}}
			resp, err := c.ShouldRateLimit(t.Context(), req)
			if code := status.Code(err); code != codes.OK && code != codes.InvalidArgument {
				t.Errorf("%.80v: %v", d, err)
			}
			if err == nil && len(resp.GetStatuses()) != 1 {
				t.Errorf("%.80v: %v", d, resp)
			}
		}
	}
	if resp, err := c.ShouldRateLimit(t.Context(),
		&ratelimitv3.RateLimitRequest{HitsAddend: math.MaxUint32}); err != nil || len(resp.GetStatuses()) != 0 {
		t.Errorf("no descriptors: %v, %v", resp, err)
	}
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, _ = c.ShouldRateLimit(ctx,
			&ratelimitv3.RateLimitRequest{Descriptors: []*ratelimitcommonv3.RateLimitDescriptor{groups}})
	}
	mu.Lock()
	defer mu.Unlock()
	for _, call := range calls {
		if call.Hits < 0 || call.Hits > maxHits || call.Bytes < 0 || len(call.Groups) > maxGroups ||
			len(call.Principal) > maxValue || len(call.Model) > maxValue {
			t.Errorf("%.200v", call)
		}
		for _, name := range append(call.Groups, call.Principal, call.Model) {
			if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
				t.Errorf("%.200q", name)
			}
		}
	}
}
