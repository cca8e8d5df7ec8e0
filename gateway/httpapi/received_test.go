package httpapi

import (
	"bytes"
	"compress/gzip"
	"context"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// What a call is said to have received is what was read of its body, not what was
// announced: limits on callers give the rest back.
func TestReceivedIsWhatWasRead(t *testing.T) {
	const two = `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}`
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(two)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	const infers = "/v2/models/two/infer"
	for _, c := range []struct {
		name, path, body string
		length           int64
		encoding         string
		refuse           bool
		status           int
		want             int64
	}{
		{name: "whole", path: infers, body: two, length: int64(len(two)), status: 200, want: int64(len(two))},
		{name: "compressed", path: infers, body: packed.String(), length: int64(packed.Len()), encoding: "gzip", status: 200, want: int64(packed.Len())},
		{name: "chunked", path: infers, body: two, length: -1, status: 200, want: int64(len(two))},
		{name: "left early", path: infers, body: two[:20], length: 1 << 20, status: 400, want: 20},
		{name: "too long", path: infers, length: 1 << 60, status: 400},
		{name: "refused before it", path: infers, body: two, length: int64(len(two)), refuse: true, status: 503},
		{name: "of a call that has none", path: "/v2/models/two/stats", body: two, length: 1 << 50, status: 405},
		{name: "of a control call", path: "/v2/repository/index", body: "{}", length: 2, status: 200, want: 2},
		{name: "of a control call that left", path: "/v2/repository/index", body: "{", length: 2, status: 400, want: 1},
		{name: "of a control call, too long", path: "/v2/repository/index", length: 1 << 50, status: 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{index: &inference.RepositoryIndexResponse{}}
			if c.refuse {
				f.open = func(context.Context, *infer.Envelope) error { return infer.Errorf(infer.Unavailable, "no") }
			}
			var got *infer.End
			f.ended = func(end *infer.End) { got = end }
			var r Reply
			h := header{}
			if c.encoding != "" {
				h["Content-Encoding"] = c.encoding
			}
			newFakeAPI(f, APIConfig{}).Serve(t.Context(), &Call{Method: "POST", Path: c.path, Header: h, Body: strings.NewReader(c.body), Length: c.length}, &r)
			if got == nil || r.Status != c.status || got.Received != c.want {
				t.Errorf("status %d, end %+v; want %d and %d bytes: %s", r.Status, got, c.status, c.want, r.Chunks)
			}
			r.Release()
		})
	}
}
