package httpapi

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

var update = flag.Bool("update", false, "write testdata/routes.txt")

// samples are paths of every kind of route. A kind without one fails TestEveryRoute.
var samples = map[routeKind][]string{
	routeServer:         {"/v2"},
	routeLive:           {"/v2/health/live"},
	routeReady:          {"/v2/health/ready"},
	routeModel:          {"/v2/models/m", "/v2/models/m/versions/1"},
	routeModelReady:     {"/v2/models/m/ready", "/v2/models/m/versions/1/ready"},
	routeConfig:         {"/v2/models/m/config"},
	routeStats:          {"/v2/models/m/stats"},
	routeAllStats:       {"/v2/models/stats"},
	routeInfer:          {"/v2/models/m/infer", "/v2/models/m/versions/1/infer"},
	routeGenerate:       {"/v2/models/m/generate"},
	routeGenerateStream: {"/v2/models/m/generate_stream"},
	routeTrace:          {"/v2/trace/setting", "/v2/models/m/trace/setting"},
	routeIndex:          {"/v2/repository/index"},
	routePurge:          {"/v2/cache/purge"},
	routeLoad:           {"/v2/repository/models/m/load"},
	routeUnload:         {"/v2/repository/models/m/unload"},
	routeRepositoryLoad: {"/v2/repository/r/models/m/load"},
	routeLogging:        {"/v2/logging"},
	routeMemoryStatus:   {"/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"},
	routeMemoryChange:   {"/v2/systemsharedmemory/region/a/register", "/v2/cudasharedmemory/unregister"},
}

// TestEveryRoute: each route asks the pipeline before anything, once, and says what it
// is. What all routes are is in testdata/routes.txt, which the end-to-end test of rights
// reads.
func TestEveryRoute(t *testing.T) {
	var lines strings.Builder
	for kind := routeNone + 1; int(kind) < len(routes); kind++ {
		if len(samples[kind]) == 0 {
			t.Errorf("kind %d has no sample", kind)
		}
		for _, path := range samples[kind] {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				rt, ok := parsePath(path)
				if !ok || rt.kind != kind {
					t.Fatalf("%s is of kind %d, want %d", path, rt.kind, kind)
				}
				if !rt.allows(method) {
					continue
				}
				var env infer.Envelope
				if !Describe(method, path, &env) {
					t.Errorf("%s %s is not described", method, path)
				}
				fmt.Fprintf(&lines, "%s %s %s %t %s\n", method, path, env.Action, env.Change, env.Model)
				refusedRoute(t, method, path, &env)
			}
		}
	}
	name := filepath.Join("testdata", "routes.txt")
	if *update {
		if err := os.WriteFile(name, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(name); err != nil || string(want) != lines.String() {
		t.Errorf("%s is out of date (-update writes it): %v\n%s", name, err, lines.String())
	}
}

func refusedRoute(t *testing.T, method, path string, want *infer.Envelope) {
	t.Helper()
	var seen []infer.Envelope
	f := &fake{}
	f.open = func(_ context.Context, env *infer.Envelope) error {
		seen = append(seen, *env)
		return infer.Refusef(infer.Unauthenticated, infer.ReasonUnauthenticated, "who are you")
	}
	s := start(t, f, Config{})
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addrs()[0].String()+path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "Bearer" || resp.Header.Get(ReasonHeader) != "unauthenticated" {
		t.Errorf("%s %s: %d %v", method, path, resp.StatusCode, resp.Header)
	}
	if len(seen) != 1 {
		t.Fatalf("%s %s: the pipeline was asked %d times", method, path, len(seen))
	}
	got := &seen[0]
	if got.Action != want.Action || got.Change != want.Change || got.Model != want.Model || got.Version != want.Version || got.Protocol != "http" {
		t.Errorf("%s %s: %+v, described as %+v", method, path, got, want)
	}
}

// TestListsAreFiltered: the index and the statistics show what the caller may see.
func TestListsAreFiltered(t *testing.T) {
	f := &fake{}
	f.visible = func(model string) bool { return model == "mine" }
	f.index = &inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{{Name: "mine"}, {Name: "other"}}}
	f.stats = &inference.ModelStatisticsResponse{ModelStats: []*inference.ModelStatistics{{Name: "other"}, {Name: "mine"}}}
	for path, body := range map[string]string{"/v2/repository/index": "{}", "/v2/models/stats": ""} {
		s := start(t, f, Config{})
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Addrs()[0].String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := resp.Write(&text); err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != 200 || !strings.Contains(text.String(), "mine") || strings.Contains(text.String(), "other") {
			t.Errorf("%s: %s", path, text.String())
		}
	}
}
