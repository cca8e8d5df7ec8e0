package sagemaker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
)

// fakeModels keeps what a repository would: repositories with the names that they give,
// and what is loaded.
type fakeModels struct {
	fail func(call, name string) error // nil: nothing fails

	mu     sync.Mutex
	repos  map[string]string // path → name of its model
	loaded map[string]bool
	faults []string
}

func (m *fakeModels) failure(call, name string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail(call, name)
}

func (m *fakeModels) Register(path string, names map[string]string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.repos[path]; ok {
		return infer.Errorf(infer.AlreadyExists, "model repository '%s' has already been registered", path)
	}
	for folder, name := range names {
		if _, err := os.Stat(filepath.Join(path, folder)); err != nil {
			m.faults = append(m.faults, "no folder "+folder)
		}
		for _, n := range m.repos {
			if n == name {
				return infer.Errorf(infer.AlreadyExists, "failed to register '%s', there is a conflicting mapping for '%s'", name, name)
			}
		}
		m.repos[path] = name
	}
	return nil
}

func (m *fakeModels) Unregister(_ context.Context, path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.repos[path]; !ok {
		m.faults = append(m.faults, "unregistered what was not there: "+path)
	}
	delete(m.repos, path)
	return nil
}

func (m *fakeModels) Load(_ context.Context, name string) error {
	if err := m.failure("load", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded[name] {
		m.faults = append(m.faults, "loaded twice: "+name)
	}
	m.loaded[name] = true
	return nil
}

func (m *fakeModels) Unload(_ context.Context, name string, dependents bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded[name] || !dependents {
		m.faults = append(m.faults, "unloaded what was not there: "+name)
	}
	delete(m.loaded, name)
	return nil
}

func (m *fakeModels) ModelReady(name, _ string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.loaded[name], nil
}

// fakePipeline lets every call in that allow does not refuse, and answers no inference.
type fakePipeline struct {
	visible func(string) bool
	allow   func(env *infer.Envelope, model string) bool // nil: everything
	err     error                                        // of inferences

	mu  sync.Mutex
	ran []string // models
}

func (p *fakePipeline) Open(_ context.Context, env *infer.Envelope) (wait func() error, err error) {
	return nil, p.Allowed(env, env.Model)
}
func (*fakePipeline) Patient() bool { return false }
func (p *fakePipeline) Allowed(env *infer.Envelope, model string) error {
	if p.allow != nil && !p.allow(env, model) {
		return infer.Refusef(infer.PermissionDenied, infer.ReasonForbidden, "no right on '%s'", model)
	}
	return nil
}
func (*fakePipeline) Close(*infer.Envelope, *infer.End) {}
func (p *fakePipeline) Infer(_ context.Context, req *infer.Request, to infer.Sink) {
	p.mu.Lock()
	p.ran = append(p.ran, req.Model)
	p.mu.Unlock()
	infer.Flush(to.Done(p.err))
}
func (p *fakePipeline) Start(ctx context.Context, req *infer.Request, to infer.Sink) func() {
	return func() { p.Infer(ctx, req, to) }
}
func (*fakePipeline) Refused(context.Context, *infer.Request, error) {}
func (p *fakePipeline) Visible(_ *infer.Envelope, model string) bool {
	return p.visible == nil || p.visible(model)
}

type header map[string]string

func (h header) Get(name string) string { return h[name] }
func (h header) Count(name string) int {
	if _, ok := h[name]; ok {
		return 1
	}
	return 0
}
func (h header) Each(f func(name, value string) bool) {
	for n, v := range h {
		if !f(n, v) {
			return
		}
	}
}

// front is a Server behind the HTTP front end, and the folder that it loads from.
type front struct {
	api    *httpapi.API
	models *fakeModels
	pipe   *fakePipeline
	root   string
}

func open(t testing.TB) *front {
	t.Helper()
	return serve(t, lay(t))
}

// lay makes the folders of three models.
func lay(t testing.TB) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "opt")
	for _, dir := range []string{"a/model/net/1", "b/model/net/1", "c/model/net/1"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func serve(t testing.TB, root string) *front {
	t.Helper()
	f := &front{models: &fakeModels{repos: map[string]string{}, loaded: map[string]bool{}}, pipe: &fakePipeline{err: infer.Errorf(infer.Unavailable, "busy")}, root: root}
	s := New(Config{Call: "infer", Model: "default", Root: root}, f.models, slog.New(slog.DiscardHandler))
	api, err := httpapi.NewAPI(httpapi.APIConfig{Platform: s.Platform()}, httpapi.APIDeps{Pipeline: f.pipe, Bodies: heap{}})
	if err != nil {
		t.Fatal(err)
	}
	f.api = api
	return f
}

// ask sends one call and gives status and body.
func (f *front) ask(ctx context.Context, method, path, body string, h header) (int, string) {
	if h == nil {
		h = header{}
	}
	var reply httpapi.Reply
	f.api.Serve(ctx, &httpapi.Call{Method: method, Path: path, Header: h, Body: strings.NewReader(body), Length: int64(len(body))}, &reply)
	defer reply.Release()
	return reply.Status, string(bytes.Join(reply.Chunks, nil))
}

func (f *front) load(ctx context.Context, name, hash string) (int, string) {
	return f.ask(ctx, "POST", "/models", fmt.Sprintf(`{"model_name":%q,"url":%q}`, name, f.root+"/"+hash+"/model"), nil)
}

// heap is memory for bodies.
type heap struct{ memorytest.Plenty }

func (heap) Body(n int64) (*infer.Buffer, error) { return infer.NewBuffer(make([]byte, n), nil), nil }
