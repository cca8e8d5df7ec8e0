package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

var moment = time.Date(2026, 2, 3, 4, 5, 6, 7089000, time.UTC).UnixNano()

func inference() (*infer.Envelope, *infer.End) {
	env := &infer.Envelope{Protocol: "http", Method: "POST", Path: "/v2/models/m/infer", Action: infer.ActionInference, Model: "m",
		RequestID: "r-1", Remote: netip.MustParseAddrPort("192.0.2.1:4711"), Opened: 1000,
		Principal: &infer.Principal{Name: "alice", Method: "api-key"},
		Span:      infer.SpanContext{Trace: infer.TraceID{0xab, 15: 1}, Sampled: true}}
	req := &infer.Request{Model: "m", ID: "body", Served: "3", Rows: 2, Times: infer.Times{RequestStart: 1000, QueueStart: 2000,
		ComputeStart: 502_000, ComputeEnd: 2_502_000, BatchRows: 8, CacheLookup: 4_000, Cache: infer.CacheMiss}}
	return env, &infer.End{Status: 200, Request: req, Received: 100, Sent: 200}
}

func encoded(env *infer.Envelope, end *infer.End, oneOf int) string {
	var l line
	l.encode(env, end, moment, 3_001_000, oneOf)
	return string(l.b)
}

func TestLines(t *testing.T) {
	env, end := inference()
	grpc := *env
	grpc.Protocol, grpc.Method, grpc.Path, grpc.RequestID, grpc.Unix, grpc.Principal = "grpc", "ModelInfer", "", "", true, nil
	grpc.Span = infer.SpanContext{}
	full := &infer.End{Status: 14, Err: infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "queue is full"),
		Request: &infer.Request{Model: "m", Version: "7", ID: "body"}, Received: 9}
	for name, c := range map[string]struct {
		env   *infer.Envelope
		end   *infer.End
		oneOf int
		want  string
	}{
		"success": {env, end, 1, `{"time":"2026-02-03T04:05:06.007089Z","outcome":"ok","protocol":"http","method":"POST","path":"/v2/models/m/infer",` +
			`"status":200,"request_id":"r-1","trace_id":"ab000000000000000000000000000001","sampled":true,"principal":"alice","auth":"api-key",` +
			`"remote":"192.0.2.1:4711","model":"m","version":"3","rows":2,"batch":8,"cache":"miss","queue_us":500,"compute_us":2000,"cache_us":4,` +
			`"total_us":3000,"received":100,"sent":200}` + "\n"},
		"refusal": {&grpc, full, 1, `{"time":"2026-02-03T04:05:06.007089Z","outcome":"refused","protocol":"grpc","rpc":"ModelInfer","grpc_code":14,` +
			`"code":"unavailable","reason":"queue_full","error":"queue is full","request_id":"body","remote":"unix","model":"m","version":"7",` +
			`"total_us":3000,"received":9,"sent":0}` + "\n"},
		"health, one of ten": {&infer.Envelope{Protocol: "http", Method: "GET", Path: "/v2/health/live", Remote: netip.MustParseAddrPort("[::ffff:192.0.2.7]:1")}, &infer.End{Status: 200}, 10,
			`{"time":"2026-02-03T04:05:06.007089Z","outcome":"ok","protocol":"http","method":"GET","path":"/v2/health/live","status":200,` +
				`"remote":"192.0.2.7:1","received":0,"sent":0,"one_of":10}` + "\n"},
	} {
		if got := encoded(c.env, c.end, c.oneOf); got != c.want {
			t.Errorf("%s:\n got %s want %s", name, got, c.want)
		}
	}
}

// corpus are texts that try to end a line, begin a member, break the encoding, or steer
// a terminal.
func corpus() []string {
	return []string{"plain", "", `"`, `\`, "a\nb", "a\r\nb", "\x00", "\x1b[2J", "\x7f", "\u0085", "\u2028", "\u2029", "\u202eevil", "\xff\xfe", "\xc3", "é",
		`x","outcome":"ok`, "x\"}\n{\"outcome\":\"ok", "\ufffd", "𝄞", strings.Repeat("é", 400), strings.Repeat("\x01", 300), strings.Repeat("a", maxText) + "𝄞",
		strings.Repeat("a", maxText-1) + "é", strings.Repeat("a", maxText-2) + "𝄞", strings.Repeat("\xff", 300), "</script>", "%0a", "${jndi:x}"}
}

func TestInjection(t *testing.T) {
	for _, evil := range corpus() {
		env, end := inference()
		env.Method, env.Path, env.RequestID, env.Principal = evil, evil, evil, &infer.Principal{Name: evil, Method: evil}
		end.Request.Model, end.Request.Served, end.Request.Version, end.Request.ID = evil, "", evil, evil
		end.Err = errors.New(evil)
		checkLine(t, env, end, evil)
		env.Protocol = "grpc"
		checkLine(t, env, end, evil)
	}
}

func checkLine(t *testing.T, env *infer.Envelope, end *infer.End, evil string) {
	t.Helper()
	got := encoded(env, end, 1)
	if n := strings.Count(got, "\n"); n != 1 || !strings.HasSuffix(got, "}\n") {
		t.Errorf("%q: %d line ends: %q", evil, n, got)
	}
	for _, r := range got[:len(got)-1] {
		if r < ' ' || r == 0x7f || breaks(r) || r == utf8.RuneError && !strings.Contains(evil, "\ufffd") {
			t.Errorf("%q: character %U is not escaped in %q", evil, r, got)
		}
	}
	d := json.NewDecoder(strings.NewReader(got))
	members := map[string]any{}
	if err := d.Decode(&members); err != nil {
		t.Fatalf("%q: %v in %q", evil, err, got)
	}
	if members["outcome"] != Failed {
		t.Errorf("%q: outcome is %v", evil, members["outcome"])
	}
	want := strings.ToValidUTF8(evil, "\ufffd")
	if name, ok := members["principal"].(string); evil != "" && len(evil) <= maxText && utf8.ValidString(evil) && name != want {
		t.Errorf("%q: principal reads as %q, %v", evil, name, ok)
	}
	if name, _ := members["principal"].(string); len(evil) > maxText && (!strings.HasSuffix(name, "…") || utf8.ValidString(evil) && !strings.HasPrefix(evil, strings.TrimSuffix(name, "…"))) {
		t.Errorf("%q was cut to %q", evil, name)
	}
	if len(got) > 16<<10 {
		t.Errorf("%q: the line has %d bytes", evil, len(got))
	}
}

func FuzzText(f *testing.F) {
	for _, s := range corpus() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := appendText(nil, s)
		var got string
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%q: %v in %q", s, err, b)
		}
		if bytes.ContainsAny(b, "\n\r\u2028\u2029\u0085") || !utf8.Valid(b) {
			t.Errorf("%q became %q", s, b)
		}
		if len(s) <= maxText && utf8.ValidString(s) && got != s {
			t.Errorf("%q reads as %q", s, got)
		}
	})
}

// library is the end of a call that the gRPC library failed.
func library(code codes.Code) infer.End {
	return infer.End{Status: int(code), Err: status.Error(code, "of the library")}
}

func TestOutcomes(t *testing.T) {
	http := &infer.Envelope{Protocol: "http"}
	for _, c := range []struct {
		end  infer.End
		want string
	}{
		{infer.End{Status: 200}, OK}, {infer.End{Status: 400}, Invalid}, {infer.End{Status: 0}, Failed}, {infer.End{Status: 500}, Failed},
		{infer.End{Err: infer.Errorf(infer.NotFound, "x")}, Invalid}, {infer.End{Err: infer.Errorf(infer.PermissionDenied, "x")}, Denied},
		{infer.End{Err: infer.Refusef(infer.Unavailable, infer.ReasonWorkerLost, "x")}, Failed},
		{infer.End{Err: infer.Refusef(infer.Unavailable, infer.ReasonSequenceLost, "x %w", infer.ErrWorkerLost)}, Failed},
		{infer.End{Err: infer.Refusef(infer.Unavailable, infer.ReasonQueueFull, "x")}, Refused},
		{infer.End{Err: infer.Errorf(infer.ResourceExhausted, "x")}, Refused}, {infer.End{Err: infer.Errorf(infer.Cancelled, "x")}, Cancelled},
		{infer.End{Err: errors.New("x")}, Failed}, {infer.End{Err: errors.New("x"), Request: &infer.Request{Times: infer.Times{QueueStart: 1}}}, Failed},
		{infer.End{Err: infer.CallerErrorf("no JSON"), Request: &infer.Request{}}, Invalid},
		{infer.End{Err: infer.Recovered(1), Request: &infer.Request{}}, Failed},
		{infer.End{Err: infer.CallerErrorf("no JSON, and no inference")}, Invalid},
		{infer.End{Err: errors.New("no worker"), Request: &infer.Request{}}, Failed},
		{infer.End{Err: infer.Errorf(infer.Internal, "parameters: %w", infer.CallerErrorf("no object"))}, Invalid},
	} {
		if got := Outcome(http, &c.end); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.end, got, c.want)
		}
	}
	grpc, probe := &infer.Envelope{Protocol: "grpc"}, &infer.Envelope{Protocol: "http", Action: infer.ActionHealth, Opened: 1}
	for _, c := range []struct {
		env  *infer.Envelope
		end  infer.End
		want string
	}{
		{probe, infer.End{Status: 400}, Refused}, {probe, infer.End{Status: 200}, OK}, {probe, infer.End{Status: 500}, Failed},
		{&infer.Envelope{Protocol: "http"}, infer.End{Status: 404}, Invalid}, // no route, and so no action
		{grpc, infer.End{}, OK}, {grpc, library(codes.Canceled), Cancelled}, {grpc, library(codes.Unavailable), Cancelled},
		{grpc, library(codes.ResourceExhausted), Refused}, {grpc, library(codes.Unimplemented), Invalid},
		{grpc, library(codes.Internal), Failed}, {grpc, infer.End{Status: 13, Err: errors.New("x")}, Failed},
		{grpc, infer.End{Status: 1, Err: fmt.Errorf("left: %w", context.Canceled)}, Cancelled},
	} {
		if got := Outcome(c.env, &c.end); got != c.want {
			t.Errorf("%s %+v: got %s, want %s", c.env.Protocol, c.end, got, c.want)
		}
	}
	end := library(codes.Unavailable)
	if got := encoded(grpc, &end, 1); strings.Contains(got, `"code"`) || !strings.Contains(got, `"grpc_code":14`) {
		t.Errorf("a connection that is gone became %s", got)
	}
	known := map[string]bool{}
	for _, o := range Outcomes() {
		known[o] = true
	}
	for _, code := range infer.Codes() {
		if got := Outcome(http, &infer.End{Err: infer.Errorf(code, "x")}); !known[got] || got == OK {
			t.Errorf("%s: outcome %q", code, got)
		}
	}
}

func TestSettings(t *testing.T) {
	c := DefaultConfig()
	for _, s := range [][2]string{{"successes", "100"}, {"slow-ms", "250"}, {"health", "true"}, {"max-bytes", "1000"}, {"keep", "2"}, {"buffer-bytes", "65536"}} {
		if err := c.Set(s[0], s[1]); err != nil {
			t.Error(err)
		}
	}
	want := Config{Successes: 100, Slow: 250 * time.Millisecond, Health: true, MaxBytes: 1000, Keep: 2, Buffer: 65536}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	for _, s := range [][2]string{{"successes", "-1"}, {"slow-ms", "x"}, {"health", "maybe"}, {"keep", "0"}, {"buffer-bytes", "1"}, {"colour", "red"}} {
		if c.Set(s[0], s[1]) == nil {
			t.Errorf("%s=%s was taken", s[0], s[1])
		}
	}
	c.File = Stdout
	if c.Validate() == nil {
		t.Error("standard output can be moved away")
	}
}
