package models

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a server with the repository extension.
type fake struct {
	*httptest.Server
	mu      sync.Mutex
	models  []Model             // mu
	asked   []string            // mu; path and body of load and unload calls
	headers []http.Header       // mu
	load    func(f *fake) error // answers load calls; it may wait
}

func newFake(t *testing.T) *fake {
	f := &fake{load: func(*fake) error { return nil }}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) set(models ...Model) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.models = models
}

func (f *fake) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "bad request", http.StatusTeapot)
		return
	}
	f.mu.Lock()
	f.headers = append(f.headers, r.Header)
	if r.URL.Path == "/v2/repository/index" {
		defer f.mu.Unlock()
		all := f.models
		if strings.Contains(string(text), `"ready":true`) {
			all = nil
			for _, m := range f.models {
				if m.State == "READY" {
					all = append(all, m)
				}
			}
		}
		_ = json.NewEncoder(w).Encode(all)
		return
	}
	f.asked = append(f.asked, r.URL.EscapedPath()+" "+string(text))
	f.mu.Unlock()
	if err := f.load(f); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
	}
}

// ask runs a command against the fake.
func (f *fake) ask(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, progress bytes.Buffer
	err := Run(t.Context(), append(args, "--url="+f.URL, "--interval=10ms"), &out, &progress)
	if err != nil {
		fmt.Fprintf(&progress, "error: %v\n", err)
	}
	return out.String(), progress.String(), Status(err)
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("no %q in\n%s", p, text)
		}
	}
}

func TestList(t *testing.T) {
	f := newFake(t)
	f.set(Model{"a", "1", "READY", ""}, Model{"b", "2", "UNAVAILABLE", "no\nmodel \x1b[31mfile"}, Model{Name: "c"})
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"list", "--url=" + strings.TrimPrefix(f.URL, "http://"), "--header", "X-Key: v"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	want := `+-------+---------+-------------+-------------------+
| Model | Version | State       | Reason            |
+-------+---------+-------------+-------------------+
| a     | 1       | READY       |                   |
| b     | 2       | UNAVAILABLE | no model [31mfile |
| c     | -       | -           |                   |
+-------+---------+-------------+-------------------+
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if got := f.headers[0].Get("X-Key"); got != "v" {
		t.Errorf("the header is %q", got)
	}
	out.Reset()
	if err := Run(t.Context(), []string{"list", "--json", "--ready", "--url=" + f.URL}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var got []Model
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 1 || got[0] != (Model{"a", "1", "READY", ""}) {
		t.Errorf("got %s, %v", &out, err)
	}
}

func TestListOfNone(t *testing.T) {
	f := newFake(t)
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"list", "--json", "--url=" + f.URL}, &out, io.Discard); err != nil || out.String() != "[]\n" {
		t.Errorf("got %q, %v; want []", out.String(), err)
	}
}

func TestUnixSocket(t *testing.T) {
	f := &fake{models: []Model{{"a", "1", "READY", ""}}}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: f}}
	f.Start()
	t.Cleanup(f.Close)
	var out bytes.Buffer
	if err := Run(t.Context(), []string{"list", "--url=unix://" + socket}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	has(t, out.String(), "READY")
}

func TestLoadShowsStates(t *testing.T) {
	f := newFake(t)
	seen := make(chan struct{})
	f.load = func(f *fake) error {
		f.set(Model{"a", "1", "LOADING", ""}, Model{"other", "1", "READY", ""})
		<-seen
		f.set(Model{"a", "1", "READY", ""}, Model{"other", "1", "READY", ""})
		return nil
	}
	var out bytes.Buffer
	told := &until{part: "LOADING", found: seen}
	if err := Run(t.Context(), []string{"load", "a", "--url=" + f.URL, "--interval=10ms"}, &out, told); err != nil {
		t.Fatal(err)
	}
	has(t, told.String(), "a version 1: LOADING (")
	has(t, out.String(), "| a     | 1       | READY |")
	if strings.Contains(out.String(), "other") {
		t.Errorf("another model is shown:\n%s", &out)
	}
	if calls := f.calls(); len(calls) != 1 || calls[0] != "/v2/repository/models/a/load " {
		t.Errorf("asked %q", calls)
	}
}

// until is a writer that tells when a text came.
type until struct {
	mu    sync.Mutex
	text  bytes.Buffer // mu
	part  string
	found chan struct{}
	once  sync.Once
}

func (u *until) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.text.Write(p)
	if strings.Contains(u.text.String(), u.part) {
		u.once.Do(func() { close(u.found) })
	}
	return len(p), nil
}

// next waits for another text from here on.
func (u *until) next(part string, found chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.part, u.found, u.once = part, found, sync.Once{}
}

func (u *until) String() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.text.String()
}

func TestLoadFails(t *testing.T) {
	f := newFake(t)
	f.load = func(*fake) error { return errors.New("failed to load 'x/y', no such model") }
	_, stderr, status := f.ask(t, "load", "x/y")
	if status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	has(t, stderr, "error: failed to load 'x/y', no such model (HTTP 500)")
	if calls := f.calls(); calls[0] != "/v2/repository/models/x%2Fy/load " {
		t.Errorf("asked %q", calls)
	}
}

func TestLoadTakesTooLong(t *testing.T) {
	f := newFake(t)
	over := make(chan struct{})
	f.load = func(*fake) error { <-over; return nil }
	defer close(over)
	_, stderr, status := f.ask(t, "load", "a", "--timeout=50ms")
	if status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	has(t, stderr, "model 'a' took longer than --timeout=50ms; the server goes on with it")
}

func TestLoadWithConfigAndFiles(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	big := bytes.Repeat([]byte("0123456789"), 30_001) // several blocks, the last one short
	pbtxt, model, empty := write("config.pbtxt", []byte("backend: \"identity\" max_batch_size: 4")), write("model", big), write("empty", nil)
	_, stderr, status := f.ask(t, "load", "a", "--config="+pbtxt, "--file", "1/sub/model.onnx="+model, "--file=2/e="+empty)
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	_, text, _ := strings.Cut(f.calls()[0], " ")
	var got struct{ Parameters map[string]string }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	has(t, got.Parameters["config"], `"backend":"identity"`, `"max_batch_size":4`)
	if content, err := base64.StdEncoding.DecodeString(got.Parameters["file:1/sub/model.onnx"]); err != nil || !bytes.Equal(content, big) {
		t.Errorf("the file came as %d bytes, %v", len(content), err)
	}
	if content, ok := got.Parameters["file:2/e"]; !ok || content != "" {
		t.Errorf("the empty file came as %q", content)
	}
	if _, stderr, status := f.ask(t, "load", "a", "--config="+write("c.json", []byte(`{"backend": "x"}`))); status != 0 {
		t.Errorf("JSON: %d, %s", status, stderr)
	}
	has(t, f.calls()[1], `{"parameters":{"config":"{\"backend\": \"x\"}"}}`)
}

func TestUnload(t *testing.T) {
	f := newFake(t)
	f.set(Model{"a", "1", "READY", ""})
	gone := make(chan struct{})
	f.load = func(f *fake) error {
		f.set(Model{"a", "1", "UNLOADING", ""})
		go func() {
			<-gone
			f.set(Model{"a", "1", "UNAVAILABLE", "unloaded"})
		}()
		return nil
	}
	var out bytes.Buffer
	told := &until{part: "UNLOADING", found: gone}
	if err := Run(t.Context(), []string{"unload", "a", "--dependents", "--interval=10ms", "--url=" + f.URL}, &out, told); err != nil {
		t.Fatal(err)
	}
	has(t, out.String(), "UNAVAILABLE | unloaded")
	if calls := f.calls(); len(calls) != 1 || calls[0] != `/v2/repository/models/a/unload {"parameters":{"unload_dependents":true}}` {
		t.Errorf("asked %q", calls)
	}
}

func TestWatch(t *testing.T) {
	f := newFake(t)
	f.set(Model{Name: "a"}, Model{"b", "1", "READY", ""})
	ctx, cancel := context.WithCancel(t.Context())
	idle, loading, ready := make(chan struct{}), make(chan struct{}), make(chan struct{})
	out := &until{part: "a: -", found: idle}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, []string{"watch", "a", "--interval=10ms", "--url=" + f.URL}, out, io.Discard) }()
	<-idle
	out.next("a version 1: LOADING", loading)
	f.set(Model{"a", "1", "LOADING", ""}, Model{"b", "1", "READY", ""})
	<-loading
	out.next("gone", ready)
	f.set(Model{"b", "1", "READY", ""})
	<-ready
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 3 || !strings.HasSuffix(lines[0], " a: -") || !strings.HasSuffix(lines[1], " a version 1: LOADING") || !strings.HasSuffix(lines[2], " a version 1: gone") {
		t.Errorf("told %q", lines)
	}
}

func TestWatchUntilReady(t *testing.T) {
	f := newFake(t)
	f.set(Model{"a", "1", "LOADING", ""}, Model{"bad", "1", "UNAVAILABLE", "x"})
	loading := make(chan struct{})
	out := &until{part: "LOADING", found: loading}
	done := make(chan error, 1)
	go func() {
		done <- Run(t.Context(), []string{"watch", "a", "--json", "--until-ready", "--timeout=10s", "--interval=10ms", "--url=" + f.URL}, out, io.Discard)
	}()
	<-loading
	f.set(Model{"a", "1", "READY", ""}, Model{"bad", "1", "UNAVAILABLE", "x"})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var last struct {
		Time  time.Time
		State string
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.State != "READY" || last.Time.IsZero() {
		t.Errorf("told %q, %v", lines, err)
	}
	if _, stderr, status := f.ask(t, "watch", "--until-ready", "--timeout=60ms"); status != 1 || !strings.Contains(stderr, "not ready after --timeout=60ms") {
		t.Errorf("a model that is not ready: %d, %s", status, stderr)
	}
}

func TestWatchWithoutServer(t *testing.T) {
	f := newFake(t)
	f.Close()
	_, stderr, status := f.ask(t, "watch", "--until-ready", "--timeout=100ms")
	if n := strings.Count(stderr, "no answer from "+f.URL); n != 1 || status != 1 {
		t.Errorf("told %d times, status %d:\n%s", n, status, stderr)
	}
	if _, _, status := f.ask(t, "load", "a"); status != 3 {
		t.Errorf("load: status %d, want 3", status)
	}
}

func TestWrongCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"--json":                        "give a command: list, load, unload, watch",
		"lost":                          "no command 'models lost'; did you mean 'list'?",
		"frobnicate":                    "no command 'models frobnicate'; there are list, load, unload, watch",
		"load":                          "load takes one model, not 0",
		"unload a b":                    "unload takes one model, not 2",
		"list a":                        "list takes no model",
		"list --dependents":             "--dependents is a flag of unload, not of list",
		"watch --file=1/x=y":            "--file is a flag of load, not of watch",
		"load a --file=1/x=/dev/null":   "--file needs --config",
		"load a --config=/none":         "--config: open /none: no such file or directory",
		"list --url=ftp://x":            "is not host:port, http://…, https://… or unix:///path",
		"list --header=x":               "--header: 'x' is not <name>:<value>",
		"list --nope":                   "unknown flag: --nope (sluice models --help lists the flags)",
		"load a --timeout=0s":           "--timeout greater than 0",
		"load a --interval=1ms":         "--interval must be at least 10ms",
		"load a --timeout=5":            "missing unit in duration",
		"load a --config=c --file=x/y=": "no such file or directory",
	} {
		err := Run(t.Context(), strings.Fields(args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || Status(err) != 2 {
			t.Errorf("%s: got %v (%d), want %q (2)", args, err, Status(err), want)
		}
	}
	config := filepath.Join(t.TempDir(), "c.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"x/model=/dev/null": "is not <version>/<path>=<file>", "1/../x=/dev/null": "is not <version>/<path>=<file>", "1/=/dev/null": "is not <version>/<path>=<file>",
		"1/model": "is not <version>/<path>=<file>", "1/model=/none": "no such file or directory", "1/model=/dev/null": "'/dev/null' is no plain file",
	} {
		if err := Run(t.Context(), []string{"load", "a", "--config=" + config, "--file=" + file}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) || Status(err) != 2 {
			t.Errorf("--file=%s: got %v, want %q", file, err, want)
		}
	}
}
