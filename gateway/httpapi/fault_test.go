package httpapi

import (
	"bufio"
	"encoding/json"
	"net/textproto"
	"os"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// TestMalformedIsCallersFault asks with every malformed request that Triton's answers were
// recorded for: it says 500 to many, and none may count as a fault of the server, whose log
// has an error line for each.
func TestMalformedIsCallersFault(t *testing.T) {
	f, err := os.Open("testdata/original/infer.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var fault error
	fk := &fake{ended: func(end *infer.End) { fault = end.Err }}
	a := newFakeAPI(fk, APIConfig{})
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Name == "bytes bin trunc" { // the pipeline refuses it; the fake one has no such check
			continue
		}
		h := header{}
		for k, v := range r.Header {
			h[textproto.CanonicalMIMEHeaderKey(k)] = v
		}
		fault = nil
		if got := ask(t.Context(), a, "POST", r.Path, text(t, r.Body), h); got.status == 500 {
			n++
			if fault == nil || !infer.IsCallerError(fault) {
				t.Errorf("%s: %s is a fault of the server", r.Name, got.body)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d recorded requests are answered with 500", n)
	}
}

// TestMalformedControlIsCallersFault does the same for the other calls with a body.
func TestMalformedControlIsCallersFault(t *testing.T) {
	var fault error
	fk := &fake{ended: func(end *infer.End) { fault = end.Err }, index: &inference.RepositoryIndexResponse{}}
	a := newFakeAPI(fk, APIConfig{})
	for _, path := range []string{"/v2/repository/index", "/v2/repository/models/m/load", "/v2/repository/models/m/unload",
		"/v2/logging", "/v2/trace/setting", "/v2/models/m/trace/setting", "/v2/models/m/generate",
		"/v2/models/m/generate_stream", "/v2/systemsharedmemory/region/r/register",
		"/v2/cudasharedmemory/region/r/register"} {
		for _, body := range []string{"{", `{"parameters":{"a":"b"}}`, `{"parameters":3}`, `{"log_info":"\x"}`, `{"key":3}`,
			`{"byte_size":"x"}`} {
			fault = nil
			got := ask(t.Context(), a, "POST", path, body, header{})
			if got.status == 500 && (fault == nil || !infer.IsCallerError(fault)) {
				t.Errorf("%s %s: %s is a fault of the server: %v", path, body, got.body, fault)
			}
		}
	}
}
