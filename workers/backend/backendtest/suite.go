package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// Subject is a backend and the models that the suite drives it with.
type Subject struct {
	Backend backend.Backend
	Models  []Model        // at least one
	Refused []backend.Spec // every Load of these fails, with a text that helps
	// Device is where instances are made; the zero value is the CPU.
	Device backend.InstanceSpec
	// Memory is that of Device, for a backend whose Info.Memory has DEVICE.
	Memory Device
}

// Model is a model version whose answer to one request is known. The suite makes
// batches by repeating the request.
type Model struct {
	Spec backend.Spec
	// Rows of Inputs; 0 for a model without batch dimension, which then never sees
	// more than one request in a batch.
	Rows   int
	Inputs []infer.Tensor
	Want   []infer.Tensor // in any order
	// Tolerance is the largest difference of FP32 and FP64 values; 0: equal bytes.
	Tolerance float64
	// Keeps says that batches of these inputs are kept (backend.Batch.Keep): some 10 ms pass
	// before the answer.
	Keeps bool
	// Answers is how many answers a request has, each of which is Want; 0: one.
	Answers int
	// Params are those of each request.
	Params infer.Params
	// Bad are inputs that must fail as a request, not end the instance.
	Bad [][]infer.Tensor
}

// Run drives the subject that open makes, a fresh one for each test, through what a
// worker does with a backend. open closes nothing; Run closes the backend.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	tests := []struct {
		name string
		test func(t *testing.T, s Subject)
	}{
		{"info", testInfo},
		{"describe", testDescribe},
		{"one request", testOne},
		{"whole batch", testWholeBatch},
		{"requested outputs", testRequestedOutputs},
		{"outputs in place", testPlaced},
		{"device memory", testDeviceMemory},
		{"cancelled requests", testCancelled},
		{"bad inputs", testBadInputs},
		{"memory full", testMemoryFull},
		{"concurrent instances", testConcurrent},
		{"kept batches", testKept},
		{"kept batches cancelled", testKeptCancelled},
		{"kept batches abandoned", testKeptAbandoned},
		{"kept batches without memory", testKeptMemoryFull},
		{"load refused", testRefused},
		{"load twice and close in any order", testCloseOrder},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			s := open(t)
			tc.test(t, s)
			if err := s.Backend.Close(); err != nil {
				t.Errorf("Backend.Close: %v", err)
			}
		})
	}
}

func testInfo(t *testing.T, s Subject) {
	info := s.Backend.Info()
	if info.Unavailable != "" {
		t.Errorf("Info().Unavailable = %q, want it to be usable", info.Unavailable)
	}
	defaults := 0
	for _, f := range info.Formats {
		if f.GetPlatform() == "" && f.GetFilename() == "" ||
			f.GetFilename() != "" && filepath.Base(f.GetFilename()) != f.GetFilename() {
			t.Errorf("the format %v is none: it wants a platform or the name of a file", f)
		}
		if f.GetDefault() {
			defaults++
		}
	}
	if defaults > 1 {
		t.Errorf("%d formats are the default", defaults)
	}
	for _, r := range info.Runtimes {
		if r.GetFile() == "" || filepath.Base(r.GetFile()) != r.GetFile() {
			t.Errorf("the runtime %v has no name of a file", r)
		}
	}
	for _, p := range info.Placements {
		if !info.GPU && p.GetKind() == worker.Placement_GPU && len(info.Placements) == 1 {
			t.Errorf("instances are made on GPUs alone, which can't be used")
		}
	}
}

func testDescribe(t *testing.T, s Subject) {
	for _, m := range s.Models {
		d, err := s.Backend.Describe(t.Context(), m.Spec)
		if err != nil {
			if infer.CodeOf(err) != infer.Unsupported {
				t.Errorf("%s: Describe: %v, want a description or Unsupported", m.Spec.Name, err)
			}
			continue
		}
		if len(d.Inputs) == 0 && len(d.Outputs) == 0 && d.Patch != nil { // it says only what the config leaves out
			checkPatch(t, m.Spec.Name, d.Patch, m)
			continue
		}
		checkDescribed(t, m.Spec.Name+": described inputs", d.Inputs, m.Inputs)
		checkDescribed(t, m.Spec.Name+": described outputs", d.Outputs, m.Want)
	}
}

// checkPatch wants each tensor of a patch to be one of the model's, and its type, where it says one, to be that.
func checkPatch(t *testing.T, what string, p *worker.ConfigPatch, m Model) {
	t.Helper()
	for _, in := range p.GetInput() {
		checkPatched(t, what, in, m.Inputs)
	}
	for _, out := range p.GetOutput() {
		checkPatched(t, what, out, m.Want)
	}
}

func checkPatched(t *testing.T, what string, got interface {
	GetName() string
	GetDataType() modelconfig.DataType
}, want []infer.Tensor) {
	t.Helper()
	i := slices.IndexFunc(want, func(w infer.Tensor) bool { return w.Name == got.GetName() })
	if d := got.GetDataType(); i < 0 || d != modelconfig.DataType_TYPE_INVALID && d != modelconfig.DataType(want[i].Datatype) {
		t.Errorf("%s: the patch has %v, want one of %v", what, got, want)
	}
}

// checkDescribed wants every tensor among the described ones, of the same datatype,
// rank, and dimensions where they are fixed.
func checkDescribed(t *testing.T, what string, got []backend.TensorInfo, want []infer.Tensor) {
	t.Helper()
	for _, w := range want {
		i := slices.IndexFunc(got, func(g backend.TensorInfo) bool { return g.Name == w.Name })
		if i < 0 {
			t.Errorf("%s: no %q in %v", what, w.Name, got)
			continue
		}
		g := got[i]
		fits := g.Datatype == w.Datatype && len(g.Shape) == len(w.Shape)
		for k := 0; fits && k < len(g.Shape); k++ {
			fits = g.Shape[k] == -1 || g.Shape[k] == w.Shape[k]
		}
		if !fits {
			t.Errorf("%s: %+v, want %s %v", what, g, w.Datatype, w.Shape)
		}
	}
}

func testOne(t *testing.T, s Subject) {
	for _, m := range s.Models {
		withInstance(t, s, m, func(inst backend.Instance) {
			for round := range 3 {
				b := m.batch(1)
				b.Run(inst)
				m.check(t, fmt.Sprintf("round %d", round), b)
				if b.InputMarks > 1 || b.InferMarks != 1 && !b.Kept() {
					t.Errorf("%s: %d InputDone, %d InferDone; want at most 1, and 1", m.Spec.Name, b.InputMarks, b.InferMarks)
				}
			}
		})
	}
}

func testWholeBatch(t *testing.T, s Subject) {
	for _, m := range s.Models {
		if m.Rows == 0 {
			continue
		}
		withInstance(t, s, m, func(inst backend.Instance) {
			for _, n := range []int{2, 3, 1, 4} {
				b := m.batch(n)
				b.Run(inst)
				m.check(t, fmt.Sprintf("%d requests", n), b)
			}
		})
	}
}

func testRequestedOutputs(t *testing.T, s Subject) {
	for _, m := range s.Models {
		n := 1
		if m.Rows > 0 {
			n = 2 // the second asks for everything
		}
		withInstance(t, s, m, func(inst backend.Instance) {
			for _, w := range m.Want {
				b := m.batch(n)
				b.own[0].Request.Outputs = []string{w.Name}
				b.Run(inst)
				checkFaults(t, m.Spec.Name, b)
				a := b.Answers()[0]
				if a.Err != nil || len(a.Responses) == 0 {
					t.Fatalf("%s: asked for %q: %+v", m.Spec.Name, w.Name, a)
				}
				if i := slices.IndexFunc(a.Responses[0].Outputs, func(o infer.Tensor) bool { return o.Name == w.Name }); i < 0 {
					t.Errorf("%s: asked for %q, got %v", m.Spec.Name, w.Name, names(a.Responses[0].Outputs))
				}
				if n == 1 && len(a.Responses[0].Outputs) != 1 {
					t.Errorf("%s: asked for %q alone, got %v", m.Spec.Name, w.Name, names(a.Responses[0].Outputs))
				}
			}
		})
	}
}

// testCancelled wants an answer for every request whatever is cancelled, the right
// one for those that are not, and an instance that still works.
func testCancelled(t *testing.T, s Subject) {
	for _, m := range s.Models {
		withInstance(t, s, m, func(inst backend.Instance) {
			all := m.batch(1)
			all.Cancel(0)
			all.Run(inst)
			checkFaults(t, m.Spec.Name+": all cancelled", all)
			if m.Rows > 0 {
				b := m.batch(3)
				b.Cancel(1)
				b.Run(inst)
				checkFaults(t, m.Spec.Name+": one cancelled", b)
				for _, i := range []int{0, 2} {
					m.checkAnswer(t, fmt.Sprintf("request %d beside a cancelled one", i), b.Answers()[i])
				}
			}
			after := m.batch(1)
			after.Run(inst)
			m.check(t, "after cancellations", after)
		})
	}
}

func testBadInputs(t *testing.T, s Subject) {
	for _, m := range s.Models {
		withInstance(t, s, m, func(inst backend.Instance) {
			for i, bad := range m.Bad {
				b := NewBatch(Request{ID: "bad", Rows: m.Rows, Inputs: bad})
				b.Run(inst)
				checkFaults(t, fmt.Sprintf("%s: bad inputs %d", m.Spec.Name, i), b)
				if a := b.Answers()[0]; a.Err == nil {
					t.Errorf("%s: bad inputs %d succeeded: %+v", m.Spec.Name, i, a)
				}
			}
			b := m.batch(1)
			b.Run(inst)
			m.check(t, "after bad inputs", b)
		})
	}
}

// testMemoryFull wants a refusal from Alloc to reach the requests as it is.
func testMemoryFull(t *testing.T, s Subject) {
	for _, m := range s.Models {
		withInstance(t, s, m, func(inst backend.Instance) {
			b := m.batch(1)
			b.AllocLimit = 1
			b.Run(inst)
			checkFaults(t, m.Spec.Name, b)
			a := b.Answers()[0]
			if a.Err != nil && infer.ReasonOf(a.Err) != infer.ReasonMemory {
				t.Errorf("%s: %v, want success or the refusal of Alloc", m.Spec.Name, a.Err)
			}
			after := m.batch(1)
			after.Run(inst)
			m.check(t, "after full memory", after)
		})
	}
}

func testConcurrent(t *testing.T, s Subject) {
	const instances, rounds = 3, 20
	for _, m := range s.Models {
		spec := m.Spec
		spec.Instances = instances
		model := load(t, s, spec)
		var wg sync.WaitGroup
		for i := range instances {
			wg.Go(func() {
				spec := s.Device
				spec.Name = fmt.Sprintf("instance_%d", i)
				inst, err := model.NewInstance(t.Context(), spec)
				if err != nil {
					t.Errorf("%s: NewInstance: %v", m.Spec.Name, err)
					return
				}
				for round := range rounds {
					b := m.batch(1)
					b.Run(inst)
					m.check(t, fmt.Sprintf("instance %d, round %d", i, round), b)
				}
				if err := inst.Close(); err != nil {
					t.Errorf("%s: Instance.Close: %v", m.Spec.Name, err)
				}
			})
		}
		wg.Wait()
		closeModel(t, m.Spec.Name, model)
	}
}

func testRefused(t *testing.T, s Subject) {
	for _, spec := range s.Refused {
		model, err := s.Backend.Load(t.Context(), spec)
		if err == nil {
			_, err = model.NewInstance(t.Context(), s.Device)
			closeModel(t, spec.Name, model)
		}
		switch {
		case err == nil:
			t.Errorf("%s: loaded, want an error", spec.Name)
		case err.Error() == "":
			t.Errorf("%s: the error has no text", spec.Name)
		case spec.ModelDir != "" && strings.Contains(err.Error(), spec.ModelDir):
			t.Errorf("%s: the error shows a path: %v", spec.Name, err)
		}
	}
}

// testCloseOrder loads every model twice, closes the first load's instances in
// reverse, and wants the second load unharmed.
func testCloseOrder(t *testing.T, s Subject) {
	for _, m := range s.Models {
		spec := m.Spec
		spec.Instances = 2
		first, second := load(t, s, spec), load(t, s, spec)
		a, b := newInstance(t, s, first, 0), newInstance(t, s, first, 1)
		c := newInstance(t, s, second, 0)
		closeInstance(t, spec.Name, b)
		run := m.batch(1)
		run.Run(a)
		m.check(t, "with the second instance closed", run)
		closeInstance(t, spec.Name, a)
		closeModel(t, spec.Name, first)
		run = m.batch(1)
		run.Run(c)
		m.check(t, "with the first load closed", run)
		closeInstance(t, spec.Name, c)
		closeModel(t, spec.Name, second)
	}
}

func withInstance(t *testing.T, s Subject, m Model, f func(backend.Instance)) {
	t.Helper()
	spec := m.Spec
	spec.Instances = 1
	model := load(t, s, spec)
	inst := newInstance(t, s, model, 0)
	f(inst)
	closeInstance(t, spec.Name, inst)
	closeModel(t, spec.Name, model)
}

func load(t *testing.T, s Subject, spec backend.Spec) backend.Model {
	t.Helper()
	model, err := s.Backend.Load(t.Context(), spec)
	if err != nil {
		t.Fatalf("Load(%s): %v", spec.Name, err)
	}
	return model
}

func newInstance(t *testing.T, s Subject, model backend.Model, i int) backend.Instance {
	t.Helper()
	spec := s.Device
	spec.Name = fmt.Sprintf("instance_%d", i)
	inst, err := model.NewInstance(t.Context(), spec)
	if err != nil {
		t.Fatalf("NewInstance(%s): %v", spec.Name, err)
	}
	return inst
}

func closeInstance(t *testing.T, name string, inst backend.Instance) {
	t.Helper()
	if err := inst.Close(); err != nil {
		t.Errorf("%s: Instance.Close: %v", name, err)
	}
}

func closeModel(t *testing.T, name string, model backend.Model) {
	t.Helper()
	if err := model.Close(); err != nil {
		t.Errorf("%s: Model.Close: %v", name, err)
	}
}

func (m *Model) batch(n int) *Batch {
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{ID: fmt.Sprintf("r%d", i), Rows: m.Rows, Inputs: cloneTensors(m.Inputs), Params: m.Params}
	}
	return NewBatch(requests...)
}

func (m *Model) check(t *testing.T, when string, b *Batch) {
	t.Helper()
	checkFaults(t, m.Spec.Name+": "+when, b)
	for i, a := range b.Answers() {
		m.checkAnswer(t, fmt.Sprintf("%s: request %d", when, i), a)
	}
}

func checkFaults(t *testing.T, when string, b *Batch) {
	t.Helper()
	for _, f := range b.Faults() {
		t.Errorf("%s: %s", when, f)
	}
}

func (m *Model) checkAnswer(t *testing.T, when string, a Answer) {
	t.Helper()
	responses := a.Responses
	if last := len(responses) - 1; m.Spec.Config.GetModelTransactionPolicy().GetDecoupled() && last > 0 &&
		len(responses[last].Outputs) == 0 {
		responses = responses[:last] // which only says that it is the last
	}
	if a.Err != nil || len(responses) != max(m.Answers, 1) {
		t.Errorf("%s: %s: %d responses, error %v; want %d", m.Spec.Name, when, len(responses), a.Err, max(m.Answers, 1))
		return
	}
	for _, r := range responses {
		m.checkOutputs(t, when, r.Outputs)
	}
}

func (m *Model) checkOutputs(t *testing.T, when string, got []infer.Tensor) {
	t.Helper()
	if len(got) != len(m.Want) {
		t.Errorf("%s: %s: outputs %v, want %v", m.Spec.Name, when, names(got), names(m.Want))
	}
	for _, w := range m.Want {
		i := slices.IndexFunc(got, func(o infer.Tensor) bool { return o.Name == w.Name })
		if i < 0 {
			t.Errorf("%s: %s: no output %q", m.Spec.Name, when, w.Name)
			continue
		}
		g := got[i]
		if g.Datatype != w.Datatype || !slices.Equal(g.Shape, w.Shape) || !m.near(g, w) {
			t.Errorf("%s: %s: output %q = %s %v %.64x, want %s %v %.64x", m.Spec.Name, when, w.Name,
				g.Datatype, g.Shape, g.Data, w.Datatype, w.Shape, w.Data)
		}
	}
}

func (m *Model) near(g, w infer.Tensor) bool {
	if m.Tolerance == 0 || len(g.Data) != len(w.Data) || g.Datatype != infer.FP32 && g.Datatype != infer.FP64 {
		return bytes.Equal(g.Data, w.Data)
	}
	size := int(g.Datatype.Size())
	for i := 0; i < len(g.Data); i += size {
		if !(math.Abs(float(g.Data[i:], size)-float(w.Data[i:], size)) <= m.Tolerance) {
			return false
		}
	}
	return true
}

func float(b []byte, size int) float64 {
	if size == 4 {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

func names(ts []infer.Tensor) []string {
	out := make([]string, len(ts))
	for i := range ts {
		out[i] = ts[i].Name
	}
	return out
}
