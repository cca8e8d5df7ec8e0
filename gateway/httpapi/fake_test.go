package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// fake stands for the rest of the gateway: an identity model under every name, and one
// called "params" that answers with what it was told, as the models that the recorded
// answers came from.
type fake struct {
	heldBodies
	open  func(ctx context.Context, env *infer.Envelope) error
	infer func(ctx context.Context, req *infer.Request, send infer.SendFunc) error
	ended func(end *infer.End) // nil: nobody asks
	// responses is the API's budget; nil: none.
	responses *infer.Budget
	// visible says what lists show; nil: everything.
	visible func(model string) bool
	config  *modelconfig.ModelConfig
	index   *inference.RepositoryIndexResponse
	stats   *inference.ModelStatisticsResponse
	meta    *inference.ModelMetadataResponse
	down    bool
	// degraded: workers are started again
	degraded bool

	mu       sync.Mutex
	settings *inference.LogSettingsRequest
	opened   atomic.Int64
	closed   atomic.Int64
	refused  atomic.Pointer[refusal]
}

// heldBodies counts the memory that is out.
type heldBodies struct {
	memorytest.Plenty
	held  atomic.Int64
	most  atomic.Int64
	limit int64
}

func (h *heldBodies) Body(n int64) (*infer.Buffer, error) {
	if h.limit > 0 && n > h.limit {
		return nil, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "%d bytes are too much", n)
	}
	if out := h.held.Add(n); out > h.most.Load() {
		h.most.Store(out)
	}
	data := make([]byte, n)
	return infer.NewBuffer(data, func(b *infer.Buffer) {
		for i := range min(len(b.Data), 4096) {
			b.Data[i] = 0xdb // so that a late reader sees it
		}
		h.held.Add(-n)
		b.Data = nil
	}), nil
}

func (f *fake) Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error) {
	f.opened.Add(1)
	if f.open != nil {
		return nil, f.open(ctx, env)
	}
	return nil, nil
}

func (f *fake) Patient() bool { return false }

func (f *fake) Close(_ *infer.Envelope, end *infer.End) {
	f.closed.Add(1)
	if f.ended != nil {
		f.ended(end)
	}
}

func (f *fake) answer(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	switch {
	case f.infer != nil:
		return f.infer(ctx, req, send)
	case req.Model == "params":
		return send(paramsAnswer(req))
	}
	return send(identity(req))
}

func (f *fake) Visible(_ *infer.Envelope, model string) bool {
	return f.visible == nil || f.visible(model)
}

func (f *fake) Allowed(env *infer.Envelope, model string) error {
	if !f.Visible(env, model) {
		return infer.Refusef(infer.PermissionDenied, infer.ReasonForbidden, "no right on '%s'", model)
	}
	return nil
}

func (f *fake) Refused(_ context.Context, req *infer.Request, err error) {
	f.refused.Store(&refusal{req.Model, err})
}

// refusal is one call of Refused.
type refusal struct {
	model string
	err   error
}

// identity answers with the inputs under the outputs' names, the memory shared.
func identity(req *infer.Request) *infer.Response {
	resp := &infer.Response{ID: req.ID, Model: req.Model, Version: "1", Final: true, Memory: req.Memory}
	req.Memory.Retain()
	names := strings.NewReplacer("INPUT", "OUTPUT", "I_", "O_")
	for _, in := range req.Inputs {
		in.Name = names.Replace(in.Name)
		resp.Outputs = append(resp.Outputs, in)
	}
	return resp
}

// paramsAnswer prints the request as the recorded Python model did.
func paramsAnswer(req *infer.Request) *infer.Response {
	var p []string
	quote := func(s string) string {
		b, _ := json.Marshal(s)
		return string(b)
	}
	for _, q := range req.Params {
		v := ""
		switch q.Value.Kind {
		case infer.KindBool:
			v = fmt.Sprint(q.Value.Bool)
		case infer.KindInt64:
			v = fmt.Sprint(q.Value.Int)
		case infer.KindUint64:
			v = fmt.Sprint(uint64(q.Value.Int))
		case infer.KindDouble:
			v = fmt.Sprintf("%.1f", q.Value.Double)
		case infer.KindString:
			v = quote(q.Value.Str)
		}
		p = append(p, quote(q.Name)+":"+v)
	}
	corr := fmt.Sprint(req.Correlation.ID)
	if req.Correlation.ID == 0 && req.Correlation.Str != "" {
		corr = req.Correlation.Str
	}
	flags := 0
	if req.SequenceStart {
		flags |= 1
	}
	if req.SequenceEnd {
		flags |= 2
	}
	text := fmt.Sprintf(`{"p": %s, "id": %s, "corr": %s, "flags": %d, "timeout": %d}`, quote("{"+strings.Join(p, ",")+"}"),
		quote(req.ID), quote(corr), flags, req.Timeout/time.Microsecond)
	data := append([]byte{byte(len(text)), byte(len(text) >> 8), 0, 0}, text...)
	return &infer.Response{ID: req.ID, Model: req.Model, Version: "1", Final: true,
		Outputs: []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.Bytes, Shape: []int64{1}, Data: data}}}
}

func (f *fake) Live() bool     { return !f.down }
func (f *fake) Degraded() bool { return f.degraded }

func (f *fake) ReadyNow(context.Context) bool { return !f.down && !f.degraded }

func (f *fake) ModelReadyNow(_ context.Context, name, _ string) (bool, error) {
	return name == "two", f.unknown(name)
}

func (f *fake) unknown(name string) error {
	if name == "two" {
		return nil
	}
	return infer.Errorf(infer.NotFound, "Request for unknown model: '%s' is not found", name)
}

func (f *fake) ServerMetadata() *inference.ServerMetadataResponse {
	return &inference.ServerMetadataResponse{Name: "triton", Version: "2.51.0", Extensions: []string{"classification",
		"sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
		"system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace", "logging"}}
}

func (f *fake) ModelMetadata(name, _ string) (*inference.ModelMetadataResponse, error) {
	return f.meta, f.unknown(name)
}

func (f *fake) ModelConfig(name, _ string) (*modelconfig.ModelConfig, error) {
	return f.config, f.unknown(name)
}

func (f *fake) Statistics(name, _ string) (*inference.ModelStatisticsResponse, error) {
	if name != "" && name != "two" {
		return nil, infer.Errorf(infer.InvalidArg, "requested model '%s' is not available", name)
	}
	return f.stats, nil
}

func (f *fake) Index(ready bool) (*inference.RepositoryIndexResponse, error) {
	if ready {
		return &inference.RepositoryIndexResponse{}, nil
	}
	return f.index, nil
}

func (f *fake) TraceSettings(req *inference.TraceSettingRequest) (*inference.TraceSettingResponse, error) {
	settings := map[string]*inference.TraceSettingResponse_SettingValue{"trace_level": {Value: []string{"OFF"}}}
	for name, v := range req.Settings {
		settings[name] = &inference.TraceSettingResponse_SettingValue{Value: v.Value}
	}
	return &inference.TraceSettingResponse{Settings: settings}, nil
}

// Load and Unload answer what they were told in the texts of their errors.
func (f *fake) Load(_ context.Context, name string, params map[string]*inference.ModelRepositoryParameter) error {
	if len(params) == 0 && name == "two" {
		return nil
	}
	return infer.Errorf(infer.NotFound, "%s config <%s> file <%s> of %d", name, params["config"].GetStringParam(), params["file:1/f"].GetBytesParam(), len(params))
}

func (f *fake) PurgeCache(_ context.Context, model, version, tag string) (int64, error) {
	if model == "none" {
		return 0, infer.Errorf(infer.Unsupported, "there is no response cache")
	}
	return int64(len(model) + 10*len(version) + 100*len(tag)), nil
}

func (f *fake) Unload(_ context.Context, name string, dependents bool) error {
	if name == "two" && !dependents {
		return nil
	}
	return infer.Errorf(infer.Unavailable, "%s %t", name, dependents)
}

func (f *fake) LogSettings(req *inference.LogSettingsRequest) (*inference.LogSettingsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settings = req
	type value = inference.LogSettingsResponse_SettingValue
	on := &value{ParameterChoice: &inference.LogSettingsResponse_SettingValue_BoolParam{BoolParam: true}}
	str := func(s string) *value {
		return &value{ParameterChoice: &inference.LogSettingsResponse_SettingValue_StringParam{StringParam: s}}
	}
	return &inference.LogSettingsResponse{Settings: map[string]*value{"log_file": str(""), "log_info": on, "log_warning": on,
		"log_error": on, "log_format": str("default"), "log_verbose_level": {
			ParameterChoice: &inference.LogSettingsResponse_SettingValue_Uint32Param{}}}}, nil
}

func (f *fake) RawInput(model, _ string, size int64) (infer.Tensor, error) {
	if model == "str1" {
		return infer.Tensor{Name: "INPUT0", Datatype: infer.Bytes, Shape: []int64{1, 1}}, nil
	}
	if size%4 != 0 {
		return infer.Tensor{}, infer.Errorf(infer.InvalidArg, "%d bytes are no FP32 tensor", size)
	}
	return infer.Tensor{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{1, size / 4}}, nil
}

func newFakeAPI(f *fake, c APIConfig) *API {
	a, err := NewAPI(c, APIDeps{Pipeline: f, Control: f, Bodies: f, Regions: newRegions(), Responses: f.responses})
	if err != nil {
		panic(err)
	}
	return a
}

// header is a Header of a test.
type header map[string]string

func (h header) Get(name string) string { return h[name] }

func (h header) Count(name string) int {
	if _, ok := h[name]; ok {
		return 1
	}
	return 0
}

func (h header) Each(f func(name, value string) bool) {
	for k, v := range h {
		if !f(k, v) {
			return
		}
	}
}

// answer is a reply, read whole.
type answer struct {
	status int
	typ    string
	length int64 // Inference-Header-Content-Length, -1: none
	fields map[string]string
	body   string
}

// ask runs one call through an API.
func ask(ctx context.Context, a *API, method, path, body string, h header) answer {
	c := header{}
	for k, v := range h {
		c[k] = v
	}
	var r Reply
	a.Serve(ctx, &Call{Method: method, Path: path, Header: c, Body: strings.NewReader(body), Length: int64(len(body))}, &r)
	return read(&r)
}

func read(r *Reply) answer {
	got := answer{status: r.Status, typ: r.ContentType, length: r.HeaderLength, fields: map[string]string{}}
	for _, f := range r.Fields {
		got.fields[f.Name] = f.Value
	}
	for _, c := range r.Chunks {
		got.body += string(c)
	}
	if r.Source != nil {
		for b := r.Source.Next(); len(b) > 0; b = r.Source.Next() {
			got.body += string(b)
		}
	} else if int64(len(got.body)) != r.Length {
		panic("the reply's length is not its chunks'")
	}
	r.Release()
	return got
}
