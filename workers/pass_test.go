package workers_test

import (
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// A large input of the only request may be an output as it is; the backend hears where it may
// not, and then gets the copy that it always got.
func TestPasses(t *testing.T) {
	sequence := fp32Config(nil)
	sequence.SchedulingChoice = &modelconfig.ModelConfig_SequenceBatching{SequenceBatching: &modelconfig.ModelSequenceBatching{}}
	decoupled := fp32Config(nil)
	decoupled.ModelTransactionPolicy = &modelconfig.ModelTransactionPolicy{Decoupled: true}
	for name, tc := range map[string]struct {
		config *modelconfig.ModelConfig
		rows   []int
		n      int // floats of a row
		ask    bool
		want   bool
	}{
		"one request":           {fp32Config(nil), []int{1}, large, true, true},
		"of three rows":         {fp32Config(nil), []int{3}, large, true, true},
		"not asked":             {fp32Config(nil), []int{1}, large, false, false},
		"small":                 {fp32Config(nil), []int{4}, 16, true, false},
		"two requests":          {fp32Config(nil), []int{1, 1}, large, true, false},
		"a sequence":            {sequence, []int{1}, large, true, false},
		"any number of answers": {decoupled, []int{1}, large, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &scripted{}
			var said atomic.Bool
			s.execute.Store(func(b backend.Batch) error {
				in := b.Inputs()[0]
				if tc.ask {
					said.Store(b.Passes("OUTPUT0", in.Data))
					if b.Passes("OUTPUT0", in.Data[:len(in.Data)-4]) || b.Passes("OUTPUT0", in.Data[4:]) {
						t.Error("a part of an input passes for it")
					}
				}
				in.Name = "OUTPUT0"
				return b.Outputs([]infer.Tensor{in})
			})
			g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
			g.hello(t, true)
			g.load(t, loadRequest(1, tc.config, 0))
			rows := 0
			b := &wire.Batch{ID: 1}
			for i, n := range tc.rows {
				b.Requests = append(b.Requests, wire.Request{ID: "r", Rows: n, Cancel: uint32(i)})
				rows += n
			}
			b.Rows = rows
			b.Inputs = []wire.Input{{Name: "INPUT0", Datatype: infer.FP32, Shape: []int64{int64(rows), int64(tc.n)}, Segments: make([]wire.Segment, 1)}}
			data := make([]byte, 4*rows*tc.n)
			data[7] = 3
			g.post(0, g.layOut(t, b, data))
			c, res := g.result(t)
			if len(res.Responses) > 0 { // of a decoupled model
				res.Outputs = res.Responses[0].Outputs
			}
			if c.NoMemory || res.Err != "" || len(res.Outputs) != 1 {
				t.Fatalf("%+v %+v", c, res)
			}
			o := res.Outputs[0]
			if k, is := o.Data.Input(); said.Load() != tc.want || is != tc.want || is && k != 0 || o.Data.Length != int64(len(data)) {
				t.Errorf("passes %v, want %v; the output is %+v", said.Load(), tc.want, o.Data)
			} else if !is && string(g.data(t, o)) != string(data) {
				t.Error("the output has other bytes")
			}
			g.lane.Release(c.Token)
		})
	}
}

// Requests of a batch that are executed one by one pass their own inputs.
func TestPassesApart(t *testing.T) {
	s := &scripted{}
	s.execute.Store(func(b backend.Batch) error {
		in := b.Inputs()[0]
		in.Name = "OUTPUT0"
		if len(b.Requests()) == 1 && !b.Passes("OUTPUT0", in.Data) {
			t.Error("an input does not pass")
		}
		return b.Outputs([]infer.Tensor{in})
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	b, data := apartBatch(7, 1, 2, 1)
	g.post(0, g.layOut(t, b, data...)) // the first batch is executed one by one
	c, res := g.result(t)
	if c.NoMemory || res.Err != "" || len(res.Responses) != 3 {
		t.Fatalf("%+v %+v", c, res)
	}
	for _, r := range res.Responses {
		o := r.Outputs[0]
		if k, is := o.Data.Input(); !is || k != 0 || o.Data.Length != int64(len(data[r.Index])) {
			t.Errorf("request %d is answered with %+v", r.Index, o.Data)
		}
	}
	g.lane.Release(c.Token)
}
