package httpapi

import (
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

func TestPurge(t *testing.T) {
	api := newFakeAPI(&fake{}, APIConfig{})
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{``, 200, `{"purged":0}`}, {`{}`, 200, `{"purged":0}`},
		{`{"model":"abc","version":"12","tag":"t"}`, 200, `{"purged":123}`},
		{`{"model":"none"}`, 501, `{"error":"there is no response cache"}`},
		{`{"models":"abc"}`, 400, `{"error":"unknown member 'models': want model, version, tag"}`},
		{`{"model":5}`, 400, ""}, {`{"model"`, 400, ""},
	} {
		got := ask(t.Context(), api, "POST", "/v2/cache/purge", c.body, nil)
		if got.status != c.status || c.want != "" && got.body != c.want {
			t.Errorf("%s: got %d %s, want %d %s", c.body, got.status, got.body, c.status, c.want)
		}
	}
	if got := ask(t.Context(), api, "GET", "/v2/cache/purge", "", nil); got.status != 405 {
		t.Errorf("GET: %d", got.status)
	}
}

func TestCacheFields(t *testing.T) {
	for _, c := range []struct {
		resp infer.Response
		want []Field
	}{
		{infer.Response{}, nil},
		{infer.Response{Cache: infer.CacheHit, Age: 61900 * time.Millisecond}, []Field{{"Cache-Status", "sluice; hit"}, {"Age", "61"}}},
		{infer.Response{Cache: infer.CacheMiss}, []Field{{"Cache-Status", "sluice; fwd=miss"}}},
		{infer.Response{Cache: infer.CacheCollapsed}, []Field{{"Cache-Status", "sluice; fwd=miss; collapsed"}}},
		{infer.Response{Cache: infer.CacheBypass}, []Field{{"Cache-Status", "sluice; fwd=bypass"}}},
	} {
		var r Reply
		r.cacheFields(&c.resp)
		if len(r.Fields) != len(c.want) {
			t.Fatalf("%+v: got %v, want %v", c.resp, r.Fields, c.want)
		}
		for i := range c.want {
			if r.Fields[i] != c.want[i] {
				t.Errorf("%+v: got %v, want %v", c.resp, r.Fields, c.want)
			}
		}
	}
}
