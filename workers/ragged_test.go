package workers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// raggedOf is a batch of three requests, of 1, 2 and 1 rows, with an input of each
// layout.
func raggedOf() (*wire.Batch, [][]byte) {
	b := &wire.Batch{ID: 4, Rows: 4}
	for i, rows := range []int{1, 2, 1} {
		b.Requests = append(b.Requests, wire.Request{ID: fmt.Sprint("r", i), Rows: rows, Cancel: uint32(i)})
	}
	b.Inputs = []wire.Input{
		{Name: "RAGGED", Datatype: infer.Int8, Shape: []int64{7}, Layout: infer.Ragged, Extents: [][]int64{{1, 3}, {2, 2}, {1, 0}}, Segments: make([]wire.Segment, 2)},
		{Name: "WORDS", Datatype: infer.Bytes, Shape: []int64{3}, Layout: infer.Ragged, Extents: [][]int64{{1, 1}, {2, 1}, {1, 0}}, Segments: make([]wire.Segment, 1)},
		{Name: "SHARED", Datatype: infer.Int8, Shape: []int64{4}, Layout: infer.Shared, Segments: make([]wire.Segment, 1)},
		{Name: "ROWS", Datatype: infer.Int8, Shape: []int64{4, 1}, Segments: make([]wire.Segment, 1)},
		{Name: "COMPUTED", Datatype: infer.Int8, Shape: []int64{4}, Layout: infer.Computed, Segments: make([]wire.Segment, 1)},
	}
	return b, [][]byte{[]byte("abc"), []byte("defg"), []byte("\x01\x00\x00\x00x\x00\x00\x00\x00\x02\x00\x00\x00yz"), []byte("SAME"), []byte("1234"), []byte("----")}
}

func (g *gateway) runRagged(t *testing.T) *wire.Result {
	t.Helper()
	batch, data := raggedOf()
	p := g.layOut(t, batch, data...)
	g.post(0, p)
	c, res := g.result(t)
	if c.NoMemory {
		t.Fatalf("fault %+v", c)
	}
	g.lane.Release(c.Token)
	return res
}

func TestRequestsSeeTheirOwnTensors(t *testing.T) {
	s := &scripted{}
	type seen struct {
		whole string
		own   []string
	}
	saw := make(chan seen, 1)
	s.execute.Store(func(b backend.Batch) error {
		var whole string
		var own []string
		for _, in := range b.Inputs() {
			whole += fmt.Sprintf("%s%v ", in.Name, in.Shape)
		}
		for _, r := range b.Requests() {
			var all []string
			for _, in := range r.Inputs() {
				all = append(all, fmt.Sprintf("%s%v%q", in.Name, in.Shape, in.Data))
			}
			own = append(own, strings.Join(all, " "))
		}
		saw <- seen{whole, own}
		return b.Outputs(nil)
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 64<<10)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	if res := g.runRagged(t); res.Err != "" {
		t.Fatal(res.Err)
	}
	got := <-saw
	if want := "RAGGED[7] WORDS[3] SHARED[4] ROWS[4 1] COMPUTED[4] "; got.whole != want {
		t.Errorf("the batch has %s, want %s", got.whole, want)
	}
	want := []string{
		`RAGGED[1 3]"abc" WORDS[1 1]"\x01\x00\x00\x00x" SHARED[4]"SAME" ROWS[1 1]"1"`,
		`RAGGED[2 2]"defg" WORDS[2 1]"\x00\x00\x00\x00\x02\x00\x00\x00yz" SHARED[4]"SAME" ROWS[2 1]"23"`,
		`RAGGED[1 0]"" WORDS[1 0]"" SHARED[4]"SAME" ROWS[1 1]"4"`,
	}
	if fmt.Sprint(got.own) != fmt.Sprint(want) {
		t.Errorf("the requests have\n%s\nwant\n%s", strings.Join(got.own, "\n"), strings.Join(want, "\n"))
	}
}

// An output that batch_output names need not begin with the batch's rows; where one
// request has its answer already, the others get their own part.
func TestScatteredOutputs(t *testing.T) {
	cfg := fp32Config(nil)
	cfg.Output = append(cfg.Output, &modelconfig.ModelOutput{Name: "FLAT", DataType: modelconfig.DataType_TYPE_INT8, Dims: []int64{-1}})
	cfg.BatchOutput = []*modelconfig.BatchOutput{{TargetName: []string{"FLAT"}, SourceInput: []string{"RAGGED"}}}
	s := &scripted{}
	outputs := []infer.Tensor{{Name: "FLAT", Datatype: infer.Int8, Shape: []int64{7}, Data: []byte("ABCDEFG")},
		{Name: "OUTPUT0", Datatype: infer.Int8, Shape: []int64{4}, Data: []byte("1234")}}
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 64<<10)
	g.hello(t, true)
	g.load(t, loadRequest(1, cfg, 0))

	s.execute.Store(func(b backend.Batch) error { return b.Outputs(outputs) })
	if res := g.runRagged(t); res.Err != "" || len(res.Outputs) != 2 {
		t.Errorf("whole: %q, %d outputs", res.Err, len(res.Outputs))
	}

	s.execute.Store(func(b backend.Batch) error {
		if err := b.Fail(0, infer.Errorf(infer.InvalidArg, "no")); err != nil {
			return err
		}
		return b.Outputs(outputs)
	})
	batch, data := raggedOf()
	g.post(0, g.layOut(t, batch, data...))
	c, res := g.result(t)
	var got []string
	for _, r := range res.Responses {
		text := fmt.Sprint(r.Index, " ", r.Err)
		for _, o := range r.Outputs {
			text += fmt.Sprintf(" %s%v%s", o.Name, o.Shape, g.data(t, o))
		}
		got = append(got, text)
	}
	g.lane.Release(c.Token)
	want := []string{"0 no", "1  FLAT[2 2]DEFG OUTPUT0[2]23", "2  FLAT[1 0] OUTPUT0[1]4"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("parts: got %q, want %q", got, want)
	}

	others := []infer.Tensor{outputs[0], {Name: "OUTPUT0", Datatype: infer.Int8, Shape: []int64{2, 2}, Data: []byte("1234")}}
	s.execute.Store(func(b backend.Batch) error { return b.Outputs(others) })
	if res := g.runRagged(t); !strings.Contains(res.Err, "does not begin with the batch's 4 rows") {
		t.Errorf("other outputs are rows: got %q", res.Err)
	}
}

// A backend that cuts batch_output itself answers request by request: outputs of the whole
// batch are rows, as in any other model.
func TestScatteredByBackend(t *testing.T) {
	cfg := fp32Config(nil)
	cfg.Output = append(cfg.Output, &modelconfig.ModelOutput{Name: "FLAT", DataType: modelconfig.DataType_TYPE_INT8, Dims: []int64{-1}})
	cfg.BatchOutput = []*modelconfig.BatchOutput{{TargetName: []string{"FLAT"}, SourceInput: []string{"RAGGED"}}}
	s := &scripted{info: backend.Info{Ragged: true}}
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 64<<10)
	g.hello(t, true)
	g.load(t, loadRequest(1, cfg, 0))
	flat := func(data string) []infer.Tensor {
		return []infer.Tensor{{Name: "FLAT", Datatype: infer.Int8, Shape: []int64{int64(len(data))}, Data: []byte(data)}}
	}
	s.execute.Store(func(b backend.Batch) error { return b.Outputs(flat("ABCDEFG")) })
	if res := g.runRagged(t); !strings.Contains(res.Err, "does not begin with the batch's 4 rows") {
		t.Errorf("of the whole batch: got %q", res.Err)
	}
	s.execute.Store(func(b backend.Batch) error {
		for i := range b.Requests() {
			if err := b.Respond(i, flat("ABC"[:i+1]), nil, true); err != nil {
				return err
			}
		}
		return nil
	})
	if res := g.runRagged(t); res.Err != "" || len(res.Responses) != 3 || res.Responses[1].Err != "" || res.Responses[1].Outputs[0].Shape[0] != 2 {
		t.Errorf("request by request: got %+v", res)
	}
}
