package sagemaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/infer"
)

const tensor = `{"inputs":[{"name":"x","shape":[1],"datatype":"INT32","data":[1]}]}`

func TestCalls(t *testing.T) {
	f := open(t)
	target := header{TargetHeader: "b.tar.gz"}
	for _, step := range []struct {
		method, path, body string
		header             header
		status             int
		text               string // in the body; R is the root
	}{
		{"GET", "/models", "", nil, 200, `{"models":[]}`},
		{"POST", "/models", `{"model_name":"one","url":"R/a/model"}`, nil, 200, ""},
		{"POST", "/models", `{"model_name":"one","url":"R/a/model"}`, nil, 409, "model repository 'R/a/model' has already been registered"},
		{"POST", "/models", `{"model_name":"one","url":"R/b/model"}`, nil, 409, "conflicting mapping for 'one'"},
		{"POST", "/models", `{"model_name":"two","url":"R/a/model"}`, nil, 409, "model repository 'R/a/model' has already been registered"},
		{"POST", "/models", `{"model_name":"two","url":"R/b/model"}`, target, 200, ""},
		{"POST", "/models", `{"url":"R/c/model"}`, nil, 400, "model_name"},
		{"POST", "/models", `{"model_name":"a/b","url":"R/c/model"}`, nil, 400, "model_name 'a/b' can't stand in a path"},
		{"POST", "/models", `{"model_name":"..","url":"R/c/model"}`, nil, 400, "model_name '..' can't stand in a path"},
		{"POST", "/models", `{"model_name":"a\u0000","url":"R/c/model"}`, nil, 400, "can't stand in a path"},
		{"POST", "/models", `{"model_name":"with space%","url":"R/c/model"}`, nil, 200, ""},
		{"DELETE", "/models/with%20space%25", "", nil, 200, ""},
		{"POST", "/models", `{"model_name":"c"}`, nil, 400, "expected a path of the form R/<hash>/model[/<subdir>]"},
		{"POST", "/models", ``, nil, 400, "The document is empty"},
		{"GET", "/models/", "", nil, 200, `{"models":[{"modelName":"one","modelUrl":"R/a/model"},{"modelName":"two","modelUrl":"R/b/model"}]}`},
		{"GET", "/models/two", "", nil, 200, `{"modelName":"two","modelUrl":"R/b/model"}`},
		{"GET", "/models/b.tar.gz", "", nil, 404, ""},
		{"GET", "/models/three", "", nil, 404, ""},
		{"POST", "/models/three/invoke", tensor, nil, 404, ""},
		{"POST", "/models/one/invoke", tensor, nil, 400, "busy"}, // the protocol's 503 there
		{"POST", "/models/two/invoke", tensor, target, 400, "busy"},
		{"POST", "/models/two/invoke", tensor, header{TargetHeader: "one"}, 400, "model 'two' was loaded as 'b.tar.gz', not as 'one'"},
		{"POST", "/models/two/invoke", "{", nil, 400, "failed to parse the request JSON buffer"},
		{"POST", "/invocations", tensor, nil, 503, "busy"},
		{"GET", "/invocations", "", nil, 405, "Method Not Allowed"},
		{"DELETE", "/models/two", "", nil, 200, ""},
		{"DELETE", "/models/two", "", nil, 404, ""},
		{"DELETE", "/models", "", nil, 404, ""},
		{"PUT", "/models/one", "", nil, 400, ""},
		{"GET", "/modelsone", "", nil, 400, ""},
		{"GET", "/models//invoke", "", nil, 400, ""},
		{"GET", "/models/one/invoke/x", "", nil, 400, ""},
		{"GET", "/", "", nil, 400, ""},
		{"GET", "/v2", "", nil, 400, ""},
	} {
		root := func(s string) string { return strings.ReplaceAll(s, "R/", f.root+"/") }
		status, body := f.ask(t.Context(), step.method, step.path, root(step.body), step.header)
		if status != step.status || !strings.Contains(body, root(step.text)) || step.text == "" && body != "" {
			t.Errorf("%s %s %s: %d %q, want %d %q", step.method, step.path, step.body, status, body, step.status, root(step.text))
		}
	}
	if got := fmt.Sprint(f.pipe.ran); got != "[one b.tar.gz default]" {
		t.Errorf("ran %s", got)
	}
	if len(f.models.faults) > 0 || fmt.Sprint(f.models.loaded) != "map[one:true]" {
		t.Errorf("%v, loaded %v", f.models.faults, f.models.loaded)
	}
}

// TestFailedLoad: of a load that fails nothing is left, and its status tells the platform
// what to do.
func TestFailedLoad(t *testing.T) {
	f := open(t)
	for _, row := range []struct {
		err    error
		status int
	}{
		{infer.Errorf(infer.InvalidArg, "wrong config"), 400},
		{infer.Errorf(infer.Internal, "instance 0: CUDA out of memory"), 507},
		{infer.Errorf(infer.InvalidArg, "failed to load 'm': std::bad_alloc: Out of memory"), 507},
		{infer.Errorf(infer.InvalidArg, "failed to load 'BEDROOM': no version"), 400},
		{infer.Errorf(infer.Unavailable, "can not create model 'm': memory limit set for GPU 0 has exceeded, model loading is rejected."), 507},
		{infer.Errorf(infer.AlreadyExists, "it is there"), 409},
		{infer.Errorf(infer.Unavailable, "the server is shutting down"), 400},
	} {
		f.models.fail = func(string, string) error { return row.err }
		status, body := f.load(t.Context(), "m", "a")
		if status != row.status || !strings.Contains(body, row.err.Error()) {
			t.Errorf("%v: %d %s, want %d", row.err, status, body, row.status)
		}
	}
	f.models.fail = nil
	if status, body := f.load(t.Context(), "m", "a"); status != 200 {
		t.Errorf("after loads that failed: %d %s", status, body)
	}
	if len(f.models.faults) > 0 || len(f.models.repos) != 1 {
		t.Errorf("%v, registered %v", f.models.faults, f.models.repos)
	}
}

// TestLoadOutlivesItsCaller: the platform that left and asks again finds the model there.
func TestLoadOutlivesItsCaller(t *testing.T) {
	f := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.models.fail = func(string, string) error { cancel(); return nil }
	if status, body := f.load(ctx, "m", "a"); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, _ := f.load(t.Context(), "m", "a"); status != 409 {
		t.Errorf("again: %d", status)
	}
}

func TestListHidesWhatTheCallerMayNotSee(t *testing.T) {
	f := open(t)
	f.load(t.Context(), "mine", "a")
	f.load(t.Context(), "other", "b")
	f.pipe.visible = func(model string) bool { return model == "mine" }
	if _, body := f.ask(t.Context(), "GET", "/models", "", nil); !strings.Contains(body, "mine") || strings.Contains(body, "other") {
		t.Error(body)
	}
}

// TestInvokeStatus: the original knows 400 and 507; what only we refuse has its own.
func TestInvokeStatus(t *testing.T) {
	f := open(t)
	f.load(t.Context(), "m", "a")
	for _, row := range []struct {
		err  error
		want int
	}{
		{infer.Errorf(infer.NotFound, "gone"), 400}, {infer.Errorf(infer.Internal, "boom"), 400}, {infer.Errorf(infer.Internal, "std::bad_alloc: OOM"), 507},
		{infer.Errorf(infer.Internal, "java.lang.OutOfMemoryError"), 507}, {infer.Errorf(infer.Internal, "in ROOM 101"), 400},
		{infer.Errorf(infer.InvalidArg, "unexpected inference input 'OOM' for model 'm'"), 400},
		{infer.Refusef(infer.ResourceExhausted, infer.ReasonRate, "slow down"), 429}, {infer.Errorf(infer.PermissionDenied, "no"), 403},
		{infer.Errorf(infer.Unauthenticated, "who"), 401},
	} {
		f.pipe.err = row.err
		if status, body := f.ask(t.Context(), "POST", "/models/m/invoke", tensor, nil); status != row.want {
			t.Errorf("%v: %d %s, want %d", row.err, status, body, row.want)
		}
	}
}

// TestLocate: which folder of which repository a URL means.
func TestLocate(t *testing.T) {
	outside := t.TempDir()
	root := filepath.Join(t.TempDir(), "opt")
	ensemble := func(step string) string {
		return `platform: "ensemble" ensemble_scheduling { step [ { model_name: "` + step + `" } ] }`
	}
	for name, text := range map[string]string{
		"one/model/net/1/x": "", "one/model/.hidden/x": "", "one/model/readme": "",
		"top/model/config.pbtxt": "", "top/model/1/x": "",
		"sub/model/deep/config.pbtxt": "", "sub/model/other/x": "",
		"ens/model/all/config.pbtxt": ensemble("net"), "ens/model/net/config.pbtxt": `backend: "x"`, "ens/model/zzz/x": "",
		"nest/model/outer/config.pbtxt": ensemble("inner"), "nest/model/inner/config.pbtxt": ensemble("net"), "nest/model/net/x": "",
		"two/model/a/x": "", "two/model/b/x": "",
		"none/model/x": "", "real/model/net/x": "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(outside, "model", "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"out": outside, "back": "../opt/real", "gone": "nowhere", "linked": "one"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "evil/model"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "evil/model/net")); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ url, repository, folder, fault string }{
		{"R/" + strings.Repeat("x", 1000) + "/model", "", "", "', repository not found"},
		{"R/one/model", "R/one/model", "net", ""},
		{"R/one/model/", "R/one/model", "net", ""},
		{"R//one/./model", "R/one/model", "net", ""},
		{"R/top/model", "R/top", "model", ""},
		{"R/sub/model/deep", "R/sub/model", "deep", ""},
		{"R/ens/model", "R/ens/model", "all", ""},
		{"R/nest/model", "R/nest/model", "outer", ""},
		{"R/linked/model", "R/linked/model", "net", ""},
		{"R/back/model", "R/back/model", "net", ""},
		{"R/two/model", "", "", "holds the folders a, b: one model is expected, or one ensemble with its steps"},
		{"R/none/model", "", "", "holds no model folder"},
		{"R/evil/model", "", "", "holds no model folder"},
		{"R/gone/model", "", "", "repository not found"},
		{"R/nope/model", "", "", "repository not found"},
		{"R/out/model", "", "", "expected a path of the form"},
		{"R/one/model/../../../etc/model", "", "", "expected a path of the form"},
		{"R/../opt2/model", "", "", "expected a path of the form"},
		{"R/one", "", "", "expected a path of the form"},
		{"R/one/models", "", "", "expected a path of the form"},
		{"R/one/model/net/1", "", "", "expected a path of the form"},
		{"R/o ne/model", "", "", "expected a path of the form"},
		{"R/o\x00ne/model", "", "", "expected a path of the form"},
		{"one/model", "", "", "expected a path of the form"},
		{"s3://bucket/model", "", "", "expected a path of the form"},
		{"/etc/model", "", "", "expected a path of the form"},
		{"", "", "", "expected a path of the form"},
	} {
		with := func(s string) string { return strings.Replace(s, "R/", root+"/", 1) }
		c := Config{Root: root + "/./"} // as somebody may write it
		got, err := c.locate(with(row.url))
		if row.fault == "" && (err != nil || got != place{with(row.repository), row.folder}) {
			t.Errorf("%s: %v, %v", row.url, got, err)
		}
		if row.fault != "" && (err == nil || len(err.Error()) > 500 || infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), row.fault)) {
			t.Errorf("%s: %v, %v, want %s", row.url, got, err, row.fault)
		}
	}
}

// held is a repository whose models are never let go of.
type held struct{ *fakeModels }

func (h held) Unregister(ctx context.Context, path string) error {
	if err := h.fakeModels.Unregister(ctx, path); err != nil {
		return err
	}
	<-ctx.Done()
	return infer.Errorf(infer.Cancelled, "it is still held")
}

// TestUnloadEnds: a request that never ends does not keep the unload of its model for ever.
func TestUnloadEnds(t *testing.T) {
	root := lay(t)
	synctest.Test(t, func(t *testing.T) {
		models := &fakeModels{repos: map[string]string{}, loaded: map[string]bool{}}
		s := New(Config{Call: "infer", Root: root}, held{models}, slog.New(slog.DiscardHandler))
		api, err := httpapi.NewAPI(httpapi.APIConfig{Platform: s.Platform()}, httpapi.APIDeps{Pipeline: &fakePipeline{}, Bodies: heap{}})
		if err != nil {
			t.Fatal(err)
		}
		f := &front{api: api, models: models, root: root}
		f.load(t.Context(), "m", "a")
		from := time.Now()
		status, body := f.ask(t.Context(), "DELETE", "/models/m", "", nil)
		if took := time.Since(from); status != 400 || !strings.Contains(body, "still held") || took != unloadTimeout {
			t.Errorf("%d %s after %s", status, body, took)
		}
		if status, body := f.load(t.Context(), "m", "a"); status != 200 {
			t.Errorf("loaded again: %d %s", status, body)
		}
	})
}

// TestLinksStayInside: what a model's folder shows through links lies under the root too.
func TestLinksStayInside(t *testing.T) {
	outside := t.TempDir()
	for _, row := range []struct {
		link, to string
		fault    bool
	}{
		{"h/model/net/config.pbtxt", "/etc/passwd", true},
		{"h/model/config.pbtxt", "/etc/passwd", true},
		{"h/model/net/1", outside, true},
		{"h/model/net/1/model.onnx", "/etc/passwd", true},
		{"h/model/net/configs/x.pbtxt", "../../../../../../etc/passwd", true},
		{"h/model/step/1", outside, true}, // of an ensemble, maybe
		{"h/model/net/1/model.onnx", "../model.onnx", false},
		{"h/model/net/labels.txt", "../../../shared/labels.txt", false},
		{"h/model/net/1/env/bin/python", "/bin/sh", false}, // a backend's
	} {
		root := filepath.Join(t.TempDir(), "opt")
		for _, file := range []string{"h/model/net/model.onnx", "shared/labels.txt"} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755), os.WriteFile(filepath.Join(root, file), nil, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		at := filepath.Join(root, row.link)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(row.to, at)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(row.link, "step") {
			text := `platform: "ensemble" ensemble_scheduling { step [ { model_name: "step" } ] }`
			if err := os.WriteFile(filepath.Join(root, "h/model/net/config.pbtxt"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c := Config{Root: root}
		_, err := c.locate(root + "/h/model")
		if (err != nil) != row.fault || row.fault && (infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(), "is a link that leads nowhere in "+root)) {
			t.Errorf("%s to %s: %v", row.link, row.to, err)
		}
	}
}

// TestStorm: calls of many callers at a time leave the list and the repositories the same,
// and each load and unload was told of exactly once.
func TestStorm(t *testing.T) {
	f := open(t)
	var wg sync.WaitGroup
	for worker := range 8 {
		r := rand.New(rand.NewPCG(1, uint64(worker)))
		wg.Go(func() {
			for range 300 {
				name := string("abc"[r.IntN(3)])
				switch r.IntN(4) {
				case 0:
					if status, body := f.load(t.Context(), "m"+name, name); status != 200 && status != 409 {
						t.Errorf("load: %d %s", status, body)
					}
				case 1:
					if status, body := f.ask(t.Context(), "DELETE", "/models/m"+name, "", nil); status != 200 && status != 404 {
						t.Errorf("unload: %d %s", status, body)
					}
				case 2:
					if status, body := f.ask(t.Context(), "POST", "/models/m"+name+"/invoke", tensor, nil); status != 400 && status != 404 {
						t.Errorf("invoke: %d %s", status, body)
					}
				default:
					f.ask(t.Context(), "GET", "/models", "", nil)
				}
			}
		})
	}
	wg.Wait()
	if len(f.models.faults) > 0 || len(f.models.loaded) != len(f.models.repos) {
		t.Errorf("%v; loaded %v, registered %v", f.models.faults, f.models.loaded, f.models.repos)
	}
	for _, name := range []string{"a", "b", "c"} {
		want := 404
		if f.models.loaded["m"+name] {
			want = 200
		}
		if status, _ := f.ask(t.Context(), "DELETE", "/models/m"+name, "", nil); status != want {
			t.Errorf("%s at the end: %d, want %d", name, status, want)
		}
	}
}

// FuzzURL: no URL leads out of the root, whatever lies there.
func FuzzURL(f *testing.F) {
	root := filepath.Join(f.TempDir(), "opt")
	for _, dir := range []string{"a/model/net", "b/model"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(root, "b/model/all")); err != nil {
		f.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(root, "all")); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"/a/model", "/a/model/net", "/../etc/model", "/all/model", "/b/model/all", "//a/./model/", "/a/model/../../b/model", "\x00", "/a/model/%2e%2e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		c := Config{Root: root}
		at, err := c.locate(root + rest)
		if err != nil {
			return
		}
		real, err := filepath.EvalSymlinks(filepath.Join(at.repository, at.folder))
		if err != nil || !strings.HasPrefix(real, root+"/") || at.folder == "" || strings.Contains(at.folder, "/") {
			t.Errorf("%q is %+v, really %s, %v", rest, at, real, err)
		}
	})
}

// FuzzCall: no path and no body makes anything but an answer, and only a load that was
// answered with 200 registers something.
func FuzzCall(f *testing.F) {
	f.Add("POST", "/models", `{"model_name":"m","url":"R/a/model"}`)
	f.Add("POST", "/models/m/invoke", tensor)
	f.Add("DELETE", "/models/%2e%2e", "")
	f.Add("GET", "/models/a%2fb", "{")
	f.Add("POST", "/models", `{"model_name":"m","url":"R/a/model","url":[1,{"x":2}]}`)
	root := lay(f)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if path == "/ping" {
			return // there is no server that could be ready
		}
		front := serve(t, root)
		status, _ := front.ask(t.Context(), method, path, strings.ReplaceAll(body, "R/", front.root+"/"), nil)
		if status < 200 || status > 599 || status == 500 && path != "/invocations" {
			t.Errorf("%s %q: %d", method, path, status)
		}
		if n := len(front.models.repos); n > 1 || n == 1 && status != 200 || len(front.models.faults) > 0 {
			t.Errorf("%s %q %q: %d, registered %v, %v", method, path, body, status, front.models.repos, front.models.faults)
		}
	})
}
