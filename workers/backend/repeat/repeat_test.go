package repeat_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/repeat"
)

func config(change func(*modelconfig.ModelConfig)) *modelconfig.ModelConfig {
	in := func(name string, dt modelconfig.DataType, dim int64) *modelconfig.ModelInput {
		return &modelconfig.ModelInput{Name: name, DataType: dt, Dims: []int64{dim}}
	}
	out := func(name string, dt modelconfig.DataType) *modelconfig.ModelOutput {
		return &modelconfig.ModelOutput{Name: name, DataType: dt, Dims: []int64{1}}
	}
	c := &modelconfig.ModelConfig{
		Input:                  []*modelconfig.ModelInput{in("IN", modelconfig.DataType_TYPE_INT32, -1), in("DELAY", modelconfig.DataType_TYPE_UINT32, -1), in("WAIT", modelconfig.DataType_TYPE_UINT32, 1)},
		Output:                 []*modelconfig.ModelOutput{out("OUT", modelconfig.DataType_TYPE_INT32), out("IDX", modelconfig.DataType_TYPE_UINT32)},
		ModelTransactionPolicy: &modelconfig.ModelTransactionPolicy{Decoupled: true},
	}
	if change != nil {
		change(c)
	}
	return c
}

func words(name string, dt infer.Datatype, values ...int) infer.Tensor {
	t := infer.Tensor{Name: name, Datatype: dt, Shape: []int64{int64(len(values))}}
	for _, v := range values {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, uint32(v))
	}
	return t
}

func ask(values, delays []int, params ...infer.Param) backendtest.Request {
	return backendtest.Request{Params: params, Inputs: []infer.Tensor{words("IN", infer.Int32, values...),
		words("DELAY", infer.Uint32, delays...), words("WAIT", infer.Uint32, 0)}}
}

func instance(t *testing.T, c *modelconfig.ModelConfig) backend.Instance {
	t.Helper()
	b, err := repeat.New(nil)
	if err != nil {
		t.Fatal(err)
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

// text is what a request was answered.
func text(a backendtest.Answer) string {
	s := ""
	for _, r := range a.Responses {
		for _, o := range r.Outputs {
			s += fmt.Sprintf("%s=%d ", o.Name, int32(binary.LittleEndian.Uint32(o.Data)))
		}
		for _, p := range r.Params {
			s += p.Name + " "
		}
		if r.Final {
			s += "final"
		} else {
			s += "| "
		}
	}
	if a.Err != nil {
		s += "error: " + a.Err.Error()
	}
	return s
}

func TestAnswers(t *testing.T) {
	number := func(name string, n int64) infer.Param {
		return infer.Param{Name: name, Value: infer.Value{Kind: infer.KindInt64, Int: n}}
	}
	yes := func(name string) infer.Param { return infer.Param{Name: name, Value: infer.Value{Bool: true}} }
	for _, tc := range []struct {
		name string
		req  backendtest.Request
		want string
	}{
		{"none", ask(nil, nil), "final"},
		{"two", ask([]int{7, -8}, []int{0, 1}), "OUT=7 IDX=0 | OUT=-8 IDX=1 | final"},
		{"last is final", ask([]int{7}, []int{0}, yes("final")), "OUT=7 IDX=0 final"},
		{"fails", ask([]int{7, 8}, []int{0, 0}, number("fail_after", 1)), "OUT=7 IDX=0 | error: the request failed after 1 answers, as it asked to"},
		{"lengths differ", ask([]int{7}, nil), "error: expected IN and DELAY shape to match, got [1] and [0]"},
		{"echo", ask([]int{7}, []int{0}, yes("echo"), number("n", 3), number("padding", 2)), "OUT=7 IDX=0 n padding | final"},
		{"crash is not allowed", ask([]int{7}, []int{0}, number("crash_after", 0)), "OUT=7 IDX=0 | final"},
	} {
		b := backendtest.NewBatch(tc.req)
		b.Run(instance(t, config(nil)))
		if got := text(b.Answers()[0]); got != tc.want || len(b.Faults()) > 0 {
			t.Errorf("%s: %q, want %q; faults %v", tc.name, got, tc.want, b.Faults())
		}
	}
}

func TestCancelledEndsDelays(t *testing.T) {
	b := backendtest.NewBatch(ask([]int{1, 2}, []int{0, 600000}))
	timer := time.AfterFunc(5*time.Millisecond, func() { b.Cancel(0) })
	defer timer.Stop()
	b.Run(instance(t, config(nil)))
	a := b.Answers()[0]
	if len(a.Responses) != 1 || a.Err == nil || infer.CodeOf(a.Err) != infer.Cancelled {
		t.Errorf("%q, want one answer and Cancelled", text(a))
	}
}

func TestConfigIsChecked(t *testing.T) {
	b, err := repeat.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*modelconfig.ModelConfig){
		"batches":  func(c *modelconfig.ModelConfig) { c.MaxBatchSize = 1 },
		"no wait":  func(c *modelconfig.ModelConfig) { c.Input = c.Input[:2] },
		"datatype": func(c *modelconfig.ModelConfig) { c.Input[0].DataType = modelconfig.DataType_TYPE_FP32 },
		"name":     func(c *modelconfig.ModelConfig) { c.Output[1].Name = "INDEX" },
		"dims":     func(c *modelconfig.ModelConfig) { c.Output[0].Dims = []int64{2} },
	} {
		if _, err := b.Load(t.Context(), backend.Spec{Name: "m", Config: config(change)}); infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s: %v, want InvalidArg", name, err)
		}
	}
}

// Without a decoupled transaction policy a request has the first of its answers, at its time.
func TestOneAnswer(t *testing.T) {
	for _, tc := range []struct {
		name string
		req  backendtest.Request
		want string
	}{
		{"the one", ask([]int{7}, []int{0}), "OUT=7 IDX=0 final"},
		{"the one, later", ask([]int{7}, []int{5}), "OUT=7 IDX=0 final"},
		{"the first of two", ask([]int{7, 8}, []int{1, 60000}), "OUT=7 IDX=0 final"},
		{"none", ask(nil, nil), "error: input 'IN' has no element, and a model without a decoupled transaction policy gives one answer"},
	} {
		b := backendtest.NewBatch(tc.req)
		b.Run(instance(t, config(func(c *modelconfig.ModelConfig) { c.ModelTransactionPolicy = nil })))
		if got := text(b.Answers()[0]); got != tc.want || len(b.Faults()) > 0 {
			t.Errorf("%s: %q, want %q; faults %v", tc.name, got, tc.want, b.Faults())
		}
	}
}

func TestSuite(t *testing.T) {
	model := func(name string, decoupled bool, delay int) backendtest.Model {
		c := config(func(c *modelconfig.ModelConfig) { c.ModelTransactionPolicy.Decoupled = decoupled })
		return backendtest.Model{Spec: backend.Spec{Name: name, Config: c}, Keeps: delay > 0,
			Inputs: ask([]int{7}, []int{delay}).Inputs, Want: []infer.Tensor{words("OUT", infer.Int32, 7), words("IDX", infer.Uint32, 0)},
			Bad: [][]infer.Tensor{ask([]int{7}, nil).Inputs}}
	}
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		b, err := repeat.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		return backendtest.Subject{Backend: b, Models: []backendtest.Model{model("at_once", false, 0), model("later", false, 20),
			model("decoupled", true, 0), model("decoupled_later", true, 20)},
			Refused: []backend.Spec{{Name: "batches", Config: config(func(c *modelconfig.ModelConfig) { c.MaxBatchSize = 1 })}}}
	})
}
