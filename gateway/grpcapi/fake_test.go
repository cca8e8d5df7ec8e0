package grpcapi

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// fakeBodies counts what is out.
type fakeBodies struct {
	memorytest.Plenty
	out   atomic.Int64
	calls atomic.Int64
	fail  error
}

func (b *fakeBodies) Body(n int64) (*infer.Buffer, error) {
	if b.fail != nil {
		return nil, b.fail
	}
	b.calls.Add(1)
	b.out.Add(n)
	return infer.NewBuffer(make([]byte, n), func(buf *infer.Buffer) {
		clear(buf.Data) // a reader after the last release sees it
		b.out.Add(-n)
		buf.Data = nil
	}), nil
}

// fakePipeline answers by its functions; the zero value echoes.
type fakePipeline struct {
	open     func(context.Context, *infer.Envelope) error
	infer    func(context.Context, *infer.Request, infer.SendFunc) error
	visible  func(model string) bool // what lists show; nil: everything
	patient  bool                    // opening waits
	opened   atomic.Int64
	closed   atomic.Int64
	memories atomic.Int64 // response memory that is out
	refused  atomic.Pointer[refusal]

	mu        sync.Mutex
	envelopes []infer.Envelope
	ended     []infer.Envelope // as Close saw them
	header    string           // of x-test in the last envelope
}

// Open decides by its hook, at once or for who waits. What a call carries has no hook.
func (p *fakePipeline) Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	p.opened.Add(1)
	if env.Outer != nil {
		env.Principal = env.Outer.Principal
		return nil, nil
	}
	if p.patient {
		return func() error { return p.open(ctx, env) }, nil
	}
	p.mu.Lock()
	p.envelopes = append(p.envelopes, *env)
	p.header = env.Header("x-test")
	p.mu.Unlock()
	if p.open != nil {
		return nil, p.open(ctx, env)
	}
	return nil, nil
}

func (p *fakePipeline) Close(env *infer.Envelope, _ *infer.End) {
	p.mu.Lock()
	p.ended = append(p.ended, *env)
	p.mu.Unlock()
	p.closed.Add(1)
}

func (p *fakePipeline) lastEnvelope() infer.Envelope {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.envelopes[len(p.envelopes)-1]
}

func (p *fakePipeline) answer(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	if p.infer != nil {
		return p.infer(ctx, req, send)
	}
	return send(p.echo(req))
}

func (p *fakePipeline) Visible(_ *infer.Envelope, model string) bool {
	return p.visible == nil || p.visible(model)
}

func (p *fakePipeline) Refused(_ context.Context, req *infer.Request, err error) {
	p.refused.Store(&refusal{req.Model, err})
}

// refusal is one call of Refused.
type refusal struct {
	model string
	err   error
}

// echo answers with the inputs as outputs, in memory of its own.
func (p *fakePipeline) echo(req *infer.Request) *infer.Response {
	total := 0
	for i := range req.Inputs {
		total += len(req.Inputs[i].Data)
	}
	p.memories.Add(1)
	memory := infer.NewBuffer(make([]byte, 0, total), func(b *infer.Buffer) {
		clear(b.Data[:cap(b.Data)])
		b.Data = nil
		p.memories.Add(-1)
	})
	r := &infer.Response{ID: req.ID, Model: req.Model, Version: "1", Params: req.Params, Final: true, Memory: memory}
	data := memory.Data
	for i := range req.Inputs {
		in := &req.Inputs[i]
		at := len(data)
		data = append(data, in.Data...)
		r.Outputs = append(r.Outputs, infer.Tensor{Name: "OUT_" + in.Name, Place: in.Place, Datatype: in.Datatype, Shape: in.Shape, Data: data[at:]})
	}
	return r
}

// fakeControl knows the model "m".
type fakeControl struct {
	down  atomic.Bool
	watch chan bool
}

func (c *fakeControl) Live() bool { return true }

func (c *fakeControl) ReadyNow(context.Context) bool { return !c.down.Load() }

func (c *fakeControl) find(name string) error {
	if name != "m" {
		return infer.Errorf(infer.NotFound, "Request for unknown model: '%s' is not found", name)
	}
	return nil
}

func (c *fakeControl) ModelReadyNow(_ context.Context, name, _ string) (bool, error) {
	return name == "m", nil
}

func (c *fakeControl) ServerMetadata() *inference.ServerMetadataResponse {
	return &inference.ServerMetadataResponse{Name: "triton", Version: "0", Extensions: []string{"classification"}}
}

func (c *fakeControl) ModelMetadata(name, _ string) (*inference.ModelMetadataResponse, error) {
	return &inference.ModelMetadataResponse{Name: name}, c.find(name)
}

func (c *fakeControl) ModelConfig(name, _ string) (*modelconfig.ModelConfig, error) {
	return &modelconfig.ModelConfig{Name: name}, c.find(name)
}

func (c *fakeControl) Statistics(name, _ string) (*inference.ModelStatisticsResponse, error) {
	return &inference.ModelStatisticsResponse{ModelStats: []*inference.ModelStatistics{{Name: name}}}, c.find(name)
}

func (c *fakeControl) Index(bool) (*inference.RepositoryIndexResponse, error) {
	return &inference.RepositoryIndexResponse{Models: []*inference.RepositoryIndexResponse_ModelIndex{{Name: "m", Version: "1", State: "READY"}}}, nil
}

func (c *fakeControl) TraceSettings(req *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error) {
	settings := map[string]*inference.TraceSettingResponse_SettingValue{"trace_level": {Value: []string{"OFF"}}}
	for name, v := range req.Settings {
		settings[name] = &inference.TraceSettingResponse_SettingValue{Value: v.Value}
	}
	return &inference.TraceSettingResponse{Settings: settings}, nil
}

// Load and Unload know "m", too; what they were told is in the texts of their errors.
func (c *fakeControl) Load(_ context.Context, name string, params map[string]*inference.ModelRepositoryParameter) error {
	if len(params) > 0 {
		return infer.Errorf(infer.InvalidArg, "%d parameters, file of %d bytes", len(params), len(params["file:1/model.onnx"].GetBytesParam()))
	}
	return c.find(name)
}

func (c *fakeControl) PurgeCache(_ context.Context, model, version, tag string) (int64, error) {
	if model == "none" {
		return 0, infer.Errorf(infer.Unsupported, "there is no response cache")
	}
	return int64(len(model) + 10*len(version) + 100*len(tag)), nil
}

func (c *fakeControl) Unload(_ context.Context, name string, dependents bool) error {
	if dependents {
		return infer.Errorf(infer.Unavailable, "with dependents")
	}
	return c.find(name)
}

func (c *fakeControl) LogSettings(*inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	return &inference.LogSettingsResponse{}, nil
}

func (c *fakeControl) WatchReady(context.Context) <-chan bool { return c.watch }

// eventually polls until ok or the deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10s", what)
		}
	}
}
