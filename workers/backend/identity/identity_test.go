package identity_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/identity"
)

func config(types ...modelconfig.DataType) *modelconfig.ModelConfig {
	c := &modelconfig.ModelConfig{Parameters: map[string]*modelconfig.ModelParameter{}}
	for i, dt := range types {
		c.Input = append(c.Input, &modelconfig.ModelInput{Name: "INPUT" + string(rune('0'+i)), DataType: dt})
		c.Output = append(c.Output, &modelconfig.ModelOutput{Name: "OUTPUT" + string(rune('0'+i)), DataType: dt})
	}
	return c
}

func renamed(in []infer.Tensor) []infer.Tensor {
	out := append([]infer.Tensor{}, in...)
	for i := range out {
		out[i].Name = strings.Replace(out[i].Name, "INPUT", "OUTPUT", 1)
	}
	return out
}

func fixed(name string, dt infer.Datatype, shape ...int64) infer.Tensor {
	n, err := infer.ByteSize(dt, shape)
	if err != nil {
		panic(err)
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7) & 1
	}
	return infer.Tensor{Name: name, Datatype: dt, Shape: shape, Data: data}
}

func open(t *testing.T) backendtest.Subject { return openWith(t, nil) }

func openWith(t *testing.T, options map[string]string) backendtest.Subject {
	b, err := identity.New(options)
	if err != nil {
		t.Fatal(err)
	}
	s := backendtest.Subject{Backend: b}
	for dt := infer.Bool; dt <= infer.BF16; dt++ {
		in := []infer.Tensor{backendtest.BytesTensor("INPUT0", []int64{2, 1}, "", "two\x00")}
		if dt != infer.Bytes {
			in = []infer.Tensor{fixed("INPUT0", dt, 2, 3)}
		}
		s.Models = append(s.Models, backendtest.Model{
			Spec: backend.Spec{Name: "rows_" + dt.String(), Version: 1, Config: config(modelconfig.DataType(dt))},
			Rows: 2, Inputs: in, Want: renamed(in)})
	}
	in := []infer.Tensor{fixed("INPUT0", infer.FP32), backendtest.BytesTensor("INPUT1", []int64{0}), fixed("INPUT2", infer.Int8, 5)}
	s.Models = append(s.Models, backendtest.Model{
		Spec: backend.Spec{Name: "whole", Version: 1,
			Config: config(modelconfig.DataType_TYPE_FP32, modelconfig.DataType_TYPE_STRING, modelconfig.DataType_TYPE_INT8)},
		Inputs: in, Want: renamed(in)})
	missing := config(modelconfig.DataType_TYPE_FP32)
	missing.Input = nil
	other := config(modelconfig.DataType_TYPE_FP32)
	other.Output[0].DataType = modelconfig.DataType_TYPE_INT32
	delay := config(modelconfig.DataType_TYPE_FP32)
	delay.Parameters["execute_delay_ms"] = &modelconfig.ModelParameter{StringValue: "soon"}
	s.Refused = []backend.Spec{
		{Name: "no_input", Config: missing}, {Name: "other_type", Config: other}, {Name: "delay", Config: delay}, {Name: "empty"}}
	return s
}

func TestSuite(t *testing.T) { backendtest.Run(t, open) }

// instance makes one of FP32 INPUT0 to OUTPUT0 with the parameters.
func instance(t *testing.T, params map[string]string) backend.Instance {
	b, err := identity.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := config(modelconfig.DataType_TYPE_FP32)
	for k, v := range params {
		c.Parameters[k] = &modelconfig.ModelParameter{StringValue: v}
	}
	m, err := b.Load(t.Context(), backend.Spec{Name: "m", Config: c})
	if err != nil {
		t.Fatal(err)
	}
	inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
	if err != nil {
		t.Fatal(err)
	}
	return inst
}

func request(params ...infer.Param) backendtest.Request {
	return backendtest.Request{Rows: 1, Inputs: []infer.Tensor{fixed("INPUT0", infer.FP32, 1, 4)}, Params: params}
}

func TestDelayOfConfigAndRequest(t *testing.T) {
	inst := instance(t, map[string]string{"execute_delay_ms": "5"})
	for _, tc := range []struct {
		name string
		req  backendtest.Request
		want time.Duration
	}{
		{"config", request(), 5 * time.Millisecond},
		{"longer request", request(infer.Param{Name: "delay_ms", Value: infer.Value{Kind: infer.KindInt64, Int: 12}}), 12 * time.Millisecond},
		{"shorter request", request(infer.Param{Name: "delay_ms", Value: infer.Value{Kind: infer.KindDouble, Double: 0.5}}), 5 * time.Millisecond},
	} {
		b := backendtest.NewBatch(tc.req)
		start := time.Now()
		b.Run(inst)
		if got := time.Since(start); got < tc.want {
			t.Errorf("%s: took %v, want at least %v", tc.name, got, tc.want)
		}
		if a := b.Answers()[0]; a.Err != nil {
			t.Errorf("%s: %v", tc.name, a.Err)
		}
	}
}

func TestDelayEndsWhenAllAreCancelled(t *testing.T) {
	inst := instance(t, map[string]string{"execute_delay_ms": "600000"})
	b := backendtest.NewBatch(request(), request())
	b.Cancel(0)
	timer := time.AfterFunc(5*time.Millisecond, func() { b.Cancel(1) })
	defer timer.Stop()
	b.Run(inst)
	for i, a := range b.Answers() {
		if a.Err == nil || infer.CodeOf(a.Err) != infer.Cancelled {
			t.Errorf("request %d: error %v, want Cancelled", i, a.Err)
		}
	}
}

func TestFailEndsOneRequest(t *testing.T) {
	inst := instance(t, nil)
	fail := infer.Param{Name: "fail", Value: infer.Value{Kind: infer.KindString, Str: "as told"}}
	b := backendtest.NewBatch(request(), request(fail), request())
	b.Run(inst)
	for i, a := range b.Answers() {
		if failed := a.Err != nil; failed != (i == 1) {
			t.Errorf("request %d: error %v", i, a.Err)
		}
	}
	if err := b.Answers()[1].Err; err != nil && err.Error() != "as told" {
		t.Errorf("error %q, want %q", err, "as told")
	}
	if f := b.Faults(); len(f) > 0 {
		t.Errorf("faults: %v", f)
	}
}

func TestCrashNeedsTheConfig(t *testing.T) {
	inst := instance(t, nil)
	b := backendtest.NewBatch(request(infer.Param{Name: "crash", Value: infer.Value{Bool: true}}))
	b.Run(inst) // the test process is still here
	if a := b.Answers()[0]; a.Err != nil {
		t.Errorf("error %v, want none", a.Err)
	}
}
