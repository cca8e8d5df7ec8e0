package timing

import (
	"regexp"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func request() *infer.Request {
	return &infer.Request{Times: infer.Times{RequestStart: 1000, QueueStart: 2000, ComputeStart: 1_002_000, ComputeInputEnd: 1_010_000,
		ComputeOutputStart: 3_010_000, ComputeEnd: 3_020_000, BatchRows: 4}}
}

func TestHeader(t *testing.T) {
	hit := &infer.Request{Times: infer.Times{QueueStart: 10, CacheLookup: 5_999, CacheHit: true, Cache: infer.CacheHit}}
	missed := request()
	missed.Times.Cache, missed.Times.CacheLookup = infer.CacheMiss, 7_000
	for name, c := range map[string]struct {
		env  *infer.Envelope
		req  *infer.Request
		want string
	}{
		"executed": {nil, request(), `^queue;dur=1.000, compute;dur=2.018, input;dur=0.008, infer;dur=2.000, output;dur=0.010, total;dur=\d+\.\d{3}$`},
		"hit":      {nil, hit, `^cache;desc=hit;dur=0.005$`},
		"missed":   {nil, missed, `^queue;dur=1.000, compute.*, cache;desc=miss;dur=0.007, total;dur=\d+\.\d{3}$`},
		"opened":   {&infer.Envelope{Opened: 1}, nil, `^total;dur=\d+\.\d{3}$`},
		"waiting":  {nil, &infer.Request{Times: infer.Times{QueueStart: 10}}, `^$`},
	} {
		if got := string(Append(nil, c.env, c.req)); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("%s: got %q, want %s", name, got, c.want)
		}
	}
}

func TestParams(t *testing.T) {
	shared := make(infer.Params, 1, 4)
	shared[0] = infer.Param{Name: "own", Value: infer.Value{Kind: infer.KindBool, Bool: true}}
	got := Params(shared, request())
	want := map[string]int64{"sluice_queue_us": 1000, "sluice_compute_us": 2018, "sluice_infer_us": 2000, "sluice_batch_size": 4}
	for name, n := range want {
		if v, ok := got.Get(name); !ok || v.Int != n {
			t.Errorf("%s: got %v, %v, want %d", name, v.Int, ok, n)
		}
	}
	if _, ok := got.Get("own"); !ok {
		t.Error("the model's own parameter is gone")
	}
	if _, ok := got.Get("sluice_cache"); ok {
		t.Error("a model without a cache says what the cache did")
	}
	if extra := shared[:cap(shared)][1]; extra.Name != "" {
		t.Errorf("the memory behind the given parameters was written: %q", extra.Name)
	}
}

// BenchmarkHeader is what a caller who asks costs.
func BenchmarkHeader(b *testing.B) {
	req, buf := request(), make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = Append(buf[:0], nil, req)
	}
}
