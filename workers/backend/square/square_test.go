package square_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest"
	"github.com/sluice-serve/sluice/workers/backend/square"
)

func config(decoupled bool, params map[string]string, change func(*modelconfig.ModelConfig)) *modelconfig.ModelConfig {
	c := &modelconfig.ModelConfig{
		Input:                  []*modelconfig.ModelInput{{Name: "IN", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}}},
		Output:                 []*modelconfig.ModelOutput{{Name: "OUT", DataType: modelconfig.DataType_TYPE_INT32, Dims: []int64{1}}},
		ModelTransactionPolicy: &modelconfig.ModelTransactionPolicy{Decoupled: decoupled},
		Parameters:             map[string]*modelconfig.ModelParameter{},
	}
	for k, v := range params {
		c.Parameters[k] = &modelconfig.ModelParameter{StringValue: v}
	}
	if change != nil {
		change(c)
	}
	return c
}

func tensor(name string, n int, shape ...int64) infer.Tensor {
	return infer.Tensor{Name: name, Datatype: infer.Int32, Shape: shape, Data: binary.LittleEndian.AppendUint32(nil, uint32(n))}
}

func open(t *testing.T) backend.Backend {
	t.Helper()
	b, err := square.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSuite(t *testing.T) {
	slow := map[string]string{"CUSTOM_INFER_DELAY_NS": "20000000"}
	batches := func(c *modelconfig.ModelConfig) { c.MaxBatchSize = 8 }
	backendtest.Run(t, func(t *testing.T) backendtest.Subject {
		return backendtest.Subject{Backend: open(t), Models: []backendtest.Model{
			{Spec: backend.Spec{Name: "one", Config: config(false, slow, nil)}, Keeps: true,
				Inputs: []infer.Tensor{tensor("IN", 1, 1)}, Want: []infer.Tensor{tensor("OUT", 1, 1)}, Bad: [][]infer.Tensor{{tensor("IN", 0, 1)}}},
			{Spec: backend.Spec{Name: "three", Config: config(true, slow, nil)}, Keeps: true, Answers: 3,
				Inputs: []infer.Tensor{tensor("IN", 3, 1)}, Want: []infer.Tensor{tensor("OUT", 3, 1)}, Bad: [][]infer.Tensor{{tensor("IN", -1, 1)}}},
			{Spec: backend.Spec{Name: "batches", Config: config(true, slow, batches)}, Keeps: true, Rows: 1, Answers: 2,
				Inputs: []infer.Tensor{tensor("IN", 2, 1, 1)}, Want: []infer.Tensor{tensor("OUT", 2, 1, 1)}, Bad: [][]infer.Tensor{{tensor("IN", -1, 1, 1)}}},
		}, Refused: []backend.Spec{
			{Name: "name", Config: config(true, nil, func(c *modelconfig.ModelConfig) { c.Input[0].Name = "X" })},
			{Name: "datatype", Config: config(true, nil, func(c *modelconfig.ModelConfig) { c.Output[0].DataType = modelconfig.DataType_TYPE_FP32 })},
			{Name: "dims", Config: config(true, nil, func(c *modelconfig.ModelConfig) { c.Input[0].Dims = []int64{-1} })},
			{Name: "outputs", Config: config(true, nil, func(c *modelconfig.ModelConfig) { c.Output = nil })},
		}}
	})
}

func TestAnswers(t *testing.T) {
	for _, tc := range []struct {
		name      string
		n         int
		decoupled bool
		params    map[string]string
		want      string
	}{
		{"none", 0, true, nil, "final"},
		{"three", 3, true, nil, "3 3 3 final"},
		{"one of three", 3, false, nil, "3 final"},
		{"two are empty", 3, true, map[string]string{"CUSTOM_EMPTY_COUNT": "2"}, "3 final"},
		{"all are empty", 2, true, map[string]string{"CUSTOM_EMPTY_COUNT": "5"}, "final"},
		{"one fails before an empty one", 3, true, map[string]string{"CUSTOM_EMPTY_COUNT": "1", "CUSTOM_FAIL_COUNT": "1"}, "3 (simulated failure) final"},
		{"two fail", 3, true, map[string]string{"CUSTOM_FAIL_COUNT": "2"}, "3 (simulated failure) (simulated failure) final"},
		{"the only one fails", 1, false, map[string]string{"CUSTOM_FAIL_COUNT": "1"}, "simulated failure"},
		{"no numbers", 1, true, map[string]string{"CUSTOM_EMPTY_COUNT": "-1", "CUSTOM_FAIL_COUNT": "one"}, "1 final"},
		{"one of none", 0, false, nil, "input 'IN' is 0, and a model without a decoupled transaction policy gives one answer"},
	} {
		m, err := open(t).Load(t.Context(), backend.Spec{Name: "m", Config: config(tc.decoupled, tc.params, nil)})
		if err != nil {
			t.Fatal(err)
		}
		inst, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
		if err != nil {
			t.Fatal(err)
		}
		b := backendtest.NewBatch(backendtest.Request{Inputs: []infer.Tensor{tensor("IN", tc.n, 1)}})
		b.Run(inst)
		if got := text(b.Answers()[0]); got != tc.want || len(b.Faults()) > 0 {
			t.Errorf("%s: %q, want %q; faults %v", tc.name, got, tc.want, b.Faults())
		}
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	}
}

// text is what a request was answered.
func text(a backendtest.Answer) string {
	var s []string
	for _, r := range a.Responses {
		for _, o := range r.Outputs {
			s = append(s, fmt.Sprint(int32(binary.LittleEndian.Uint32(o.Data))))
		}
		if r.Err != nil {
			s = append(s, "("+r.Err.Error()+")")
		}
		if r.Final {
			s = append(s, "final")
		}
	}
	if a.Err != nil {
		s = append(s, a.Err.Error())
	}
	return strings.Join(s, " ")
}
