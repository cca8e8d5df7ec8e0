package httpapi

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/h1"
	"github.com/sluice-serve/sluice/infer"
)

// TestRedirect: a redirect reads, or runs a model; every kind of route has its answer.
func TestRedirect(t *testing.T) {
	reads := map[routeKind]string{routeServer: "GET", routeLive: "GET", routeReady: "GET", routeModel: "GET", routeModelReady: "GET", routeConfig: "GET",
		routeStats: "GET", routeAllStats: "GET", routeMemoryStatus: "GET", routeInfer: "POST", routeIndex: "POST"}
	changes := map[routeKind]bool{routeLoad: true, routeUnload: true, routeRepositoryLoad: true, routeMemoryChange: true}
	for kind, paths := range samples {
		for _, path := range paths {
			a := Redirect(path)
			switch {
			case reads[kind] != "":
				if a.status != 0 || a.method != reads[kind] || a.rt.kind != kind || !a.rt.allows(a.method) || a.rt.changes(a.method) {
					t.Errorf("%s: %+v", path, a)
				}
			case changes[kind] && a.status != 403, !changes[kind] && a.status != 400:
				t.Errorf("%s is answered with %d", path, a.status)
			case a.rt.kind != routeNone:
				t.Errorf("%s: refused, with a route", path)
			}
		}
	}
	for _, path := range []string{"", "/", "/v2/", "//v2", "/V2", "/v2?x", "/metrics", "/v2/models", "/v2/../metrics", "v2"} {
		if a := Redirect(path); a.status != 400 {
			t.Errorf("%q: %+v", path, a)
		}
	}
}

const binaryType = "application/vnd.sagemaker-triton.binary+json;json-header-size="

func TestTypedLength(t *testing.T) {
	for _, row := range []struct {
		contentType string
		length      int64
		want        int64
		fault       string
	}{
		{"", 10, 10, ""}, {"application/json", 10, 10, ""}, {"application/json", -1, -1, ""},
		{binaryType + "5", 10, 5, ""}, {binaryType + "0", 10, 0, ""}, {binaryType + "10", 10, 10, ""}, {binaryType + "5", -1, 5, ""},
		{binaryType + " +5; x", 10, 5, ""},
		{binaryType + "11", 10, 0, "inference header size should be in range (0, 10), got: 11"},
		{binaryType + "-1", 10, 0, "inference header size should be in range (0, 10), got: -1"},
		{binaryType + "-1", -1, 0, "inference header size should be in range (0, 0), got: -1"},
		{binaryType, 10, 0, "Unable to parse inference header size, got: "},
		{binaryType + "-", 10, 0, "Unable to parse inference header size, got: -"},
		{binaryType + "0x5", 10, 0, ""},
		{binaryType + "2147483648", 10, 0, "Unable to parse inference header size, value is out of range, got: 2147483648"},
		{binaryType + strings.Repeat("9", 40), 10, 0, "Unable to parse inference header size, value is out of range, got: " + strings.Repeat("9", 40)},
		{"x; " + binaryType + "5", 10, 0, "expect MIME type for binary data starts with '" + binaryType + "', got: x; " + binaryType + "5"},
	} {
		got, err := typedLength(binaryType, row.contentType, row.length)
		if row.fault == "" && (err != nil || got != row.want) {
			t.Errorf("%q of %d: %d, %v, want %d", row.contentType, row.length, got, err, row.want)
		}
		if row.fault != "" && (err == nil || err.Error() != row.fault || infer.CodeOf(err) != infer.InvalidArg) {
			t.Errorf("%q of %d: %v, want %s", row.contentType, row.length, err, row.fault)
		}
	}
}

// FuzzTypedLength: a length is within the body, and a plain number means itself.
func FuzzTypedLength(f *testing.F) {
	f.Add(binaryType+"12", int64(20))
	f.Add(binaryType+" \t-7x", int64(-1))
	f.Add("text/plain", int64(3))
	f.Add("a"+binaryType+"99999999999999999999", int64(1<<31))
	f.Fuzz(func(t *testing.T, contentType string, length int64) {
		length = max(length, -1)
		got, err := typedLength(binaryType, contentType, length)
		if err != nil {
			if infer.CodeOf(err) != infer.InvalidArg || len(err.Error()) > 400 {
				t.Errorf("%q: %v", contentType, err)
			}
			return
		}
		if length >= 0 && (got < 0 || got > length) {
			t.Errorf("%q of %d: %d", contentType, length, got)
		}
		if rest, ok := strings.CutPrefix(contentType, binaryType); ok {
			if n, err := strconv.ParseUint(rest, 10, 31); err == nil && got != int64(n) {
				t.Errorf("%q: %d", contentType, got)
			}
		}
	})
}

// TestPlatformCallsAreNotLight: a platform's path may look like an inference and stand for
// anything, also for what waits: AIP_PREDICT_ROUTE is any path, and a header redirects.
func TestPlatformCallsAreNotLight(t *testing.T) {
	for name, p := range map[string]*Platform{"protocol": nil, "platform": {Alias: func(*Call) *Alias { return Redirect("/v2/repository/index") }}} {
		f := &fake{}
		a, err := NewAPI(APIConfig{Platform: p}, APIDeps{Pipeline: f, Control: f, Bodies: f})
		if err != nil {
			t.Fatal(err)
		}
		light := (&plain{api: a}).Light(&h1.Request{Method: "POST", Path: "/v2/models/m/infer"})
		if light != (p == nil) {
			t.Errorf("%s: light %t", name, light)
		}
	}
}
