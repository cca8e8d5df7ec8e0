package repository

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/schedule/ragged"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// warmupFolder holds the files of model_warmup, below the model's folder.
const warmupFolder = "warmup"

// maxWarmup bounds the data of a version's samples, and so the bytes of one of their files.
const maxWarmup = 1 << 30

// sample is one model_warmup, ready to be run. It is read-only.
// Source: message ModelWarmup, proto/modelconfig/model_config.proto.
type sample struct {
	name  string
	size  int // requests of one row each
	count int
	// inputs are those of each request: the model's, as validation left them, and those
	// that a scheduler would add.
	inputs []infer.Tensor
}

// samples reads and checks the config's warm-up data, with the original's texts; those
// of batch size 0 are left out, as there. What a sample of a sequence model does not
// name of its controls and states is added: a sequence of one request.
// Source: TritonModelInstance::GenerateWarmupData of the original.
func (p *Plan) samples(v *VersionPlan) ([]sample, error) {
	var all []sample
	cfg := v.Spec.Config
	if err := p.warmupRequests(v); err != nil {
		return nil, err
	}
	left := int64(maxWarmup)
	for _, w := range cfg.GetModelWarmup() {
		if w.BatchSize == 0 {
			continue
		}
		s := sample{name: w.Name, size: int(w.BatchSize), count: max(1, int(w.Count))}
		req := &infer.Request{Model: cfg.Name}
		var added []infer.Tensor
		for _, name := range slices.Sorted(maps.Keys(w.Inputs)) {
			t, err := p.warmupTensor(name, w.Inputs[name], left)
			if err != nil {
				return nil, err
			}
			left -= int64(len(t.Data))
			if cfg.MaxBatchSize > 0 && !isShapeTensor(cfg, name) {
				t.Shape = append([]int64{1}, t.Shape...)
			}
			if isInput(cfg, name) {
				req.Inputs = append(req.Inputs, t)
			} else {
				added = append(added, t)
			}
		}
		if err := newModel(v, func() {}).Validate(req); err != nil {
			return nil, err
		}
		var err error
		if s.inputs, err = withSequence(cfg, append(req.Inputs, added...), &left); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// warmupRequests refuses a warm-up of more requests than it may have: those of all samples on all
// instances, as the statistics count them. Nothing of it is left out.
func (p *Plan) warmupRequests(v *VersionPlan) error {
	limit, instances := uint64(p.cfg.warmupRequests()), uint64(max(1, len(v.Spec.Instances)))
	left := limit
	for _, w := range v.Spec.Config.GetModelWarmup() {
		n := uint64(w.BatchSize) * uint64(max(1, w.Count)) // of 32 bits each
		if n > left/instances {
			return infer.Errorf(infer.InvalidArg, "warmup sample '%s' runs %d batches of %d requests on %d instances: with it the version has more "+
				"than %d requests of warm-up, the most of --model-warmup-max-requests", w.Name, max(1, w.Count), w.BatchSize, instances, limit)
		}
		left -= n * instances
	}
	return nil
}

func isInput(cfg *configpb.ModelConfig, name string) bool {
	return slices.ContainsFunc(cfg.Input, func(in *configpb.ModelInput) bool { return in.Name == name })
}

func isShapeTensor(cfg *configpb.ModelConfig, name string) bool {
	return slices.ContainsFunc(cfg.Input, func(in *configpb.ModelInput) bool { return in.Name == name && in.IsShapeTensor })
}

// warmupTensor makes one input of at most limit bytes, without batch dimension.
func (p *Plan) warmupTensor(name string, in *configpb.ModelWarmup_Input, limit int64) (infer.Tensor, error) {
	t := infer.Tensor{Name: name, Datatype: infer.Datatype(in.DataType), Shape: slices.Clone(in.Dims)}
	if slices.Contains(in.Dims, -1) {
		return t, infer.Errorf(infer.InvalidArg, "warmup setting expects all variable-size dimensions are specified for input '%s'", name)
	}
	size, err := warmupSize(&t, limit)
	if err != nil {
		return t, err
	}
	switch data := in.InputDataType.(type) {
	case *configpb.ModelWarmup_Input_ZeroData:
		t.Data = make([]byte, size)
	case *configpb.ModelWarmup_Input_RandomData:
		t.Data = make([]byte, size)
		if t.Datatype != infer.Bytes { // random lengths would be none
			randomize(t.Data)
		}
	case *configpb.ModelWarmup_Input_InputDataFile:
		t.Data, err = p.warmupFile(data.InputDataFile, limit)
		switch {
		case err != nil:
			return t, err
		case t.Datatype == infer.Bytes:
		case int64(len(t.Data)) < size:
			return t, infer.Errorf(infer.InvalidArg, "%swarmup setting expects %d bytes, but the data provided from %sonly has %d bytes",
				(&infer.Request{}).Prefix(), size, data.InputDataFile, len(t.Data))
		default:
			t.Data = t.Data[:size:size]
		}
	default:
		return t, infer.Errorf(infer.InvalidArg, "%swarmup setting expects input '%s' to have input_data_type set", (&infer.Request{}).Prefix(), name)
	}
	return t, nil
}

// warmupSize is the bytes of a tensor whose strings are empty; it has at most limit.
func warmupSize(t *infer.Tensor, limit int64) (int64, error) {
	unit := t.Datatype.Size()
	if t.Datatype == infer.Bytes {
		unit = 4 // each element's length
	}
	n, err := infer.Elements(t.Shape)
	if err != nil || unit > 0 && n > limit/unit {
		return 0, infer.Errorf(infer.InvalidArg, "warmup setting for input '%s' has shape %v, more than the %d bytes that a version's samples may have", t.Name,
			t.Shape, int64(maxWarmup))
	}
	return n * unit, nil
}

// randomize fills b with the same bytes each time.
func randomize(b []byte) {
	r := rand.New(rand.NewPCG(1, 2))
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// warmupFile reads a file below the model's warm-up folder.
func (p *Plan) warmupFile(name string, limit int64) ([]byte, error) {
	if !modelconfig.SafePath(name) {
		return nil, infer.Errorf(infer.InvalidArg, "warm-up file path '%s' is outside model directory", name)
	}
	at := path.Join(warmupFolder, name)
	data, err := p.Folder.Read(at, limit)
	if infer.CodeOf(err) == infer.NotFound {
		return nil, infer.Errorf(infer.Internal, "failed to open text file for read %s: No such file or directory", at)
	}
	return data, err
}

// withSequence adds the controls and states of a sequence model that inputs leave out:
// a sequence that begins and ends with this request, and has its initial state. left is the
// bytes that samples may still have.
func withSequence(cfg *configpb.ModelConfig, inputs []infer.Tensor, left *int64) ([]infer.Tensor, error) {
	seq := cfg.GetSequenceBatching()
	given := func(name string) bool {
		return slices.ContainsFunc(inputs, func(in infer.Tensor) bool { return in.Name == name })
	}
	add := func(t infer.Tensor) {
		if given(t.Name) {
			return
		}
		if cfg.MaxBatchSize > 0 {
			t.Shape = append([]int64{1}, t.Shape...)
		}
		inputs = append(inputs, t)
	}
	for _, in := range seq.GetControlInput() {
		for _, c := range in.Control {
			t := controlTensor(c)
			t.Name = in.Name
			add(t)
		}
	}
	for _, st := range seq.GetState() {
		if given(st.InputName) {
			continue
		}
		t := infer.Tensor{Name: st.InputName, Datatype: infer.Datatype(st.DataType)}
		dims := st.Dims
		if len(st.InitialState) > 0 {
			dims = st.InitialState[0].Dims
		}
		for _, d := range dims {
			t.Shape = append(t.Shape, max(d, 1)) // a variable dimension without initial state
		}
		size, err := warmupSize(&t, *left)
		if err != nil {
			return nil, err
		}
		*left -= size
		t.Data = make([]byte, size)
		add(t)
	}
	return inputs, nil
}

// controlTensor is a control's value for the one request of a sequence: it starts, it
// ends, it is there, and its correlation ID is 1.
func controlTensor(c *configpb.ModelSequenceBatching_Control) infer.Tensor {
	t := infer.Tensor{Shape: []int64{1}}
	switch {
	case c.Kind == configpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID:
		t.Datatype = infer.Datatype(c.DataType)
		if t.Datatype == infer.Bytes {
			t.Data = []byte{1, 0, 0, 0, '1'}
			break
		}
		t.Data = make([]byte, t.Datatype.Size())
		t.Data[0] = 1
	case len(c.Int32FalseTrue) == 2:
		t.Datatype, t.Data = infer.Int32, binary.LittleEndian.AppendUint32(nil, uint32(c.Int32FalseTrue[1]))
	case len(c.Fp32FalseTrue) == 2:
		t.Datatype, t.Data = infer.FP32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(c.Fp32FalseTrue[1]))
	default:
		t.Datatype, t.Data = infer.Bool, []byte{0}
		if len(c.BoolFalseTrue) == 2 && c.BoolFalseTrue[1] {
			t.Data[0] = 1
		}
	}
	return t
}

// load runs a version's samples on every instance, all instances at once, and counts
// them in the statistics, as the original does. The first sample that fails is the
// error, in Triton's words; so is a warm-up that takes longer than it may, which ends the
// load through fail. Nothing runs when it returns without ctx having ended.
// Source: TritonModelInstance::WarmUp of the original.
func (w *warmup) load(ctx context.Context, fail context.CancelCauseFunc, executors []infer.Executor) error {
	if len(w.samples) == 0 {
		return nil
	}
	late := time.AfterFunc(w.limit, func() { fail(w.late(len(executors))) })
	defer late.Stop()
	errs := make([]error, len(executors))
	var wg sync.WaitGroup
	for i, e := range executors {
		wg.Go(func() { errs[i] = w.instance(ctx, nil, e) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Repository) warmupOf(m *Model, samples []sample) *warmup {
	return &warmup{m: m, samples: samples, limit: r.cfg.warmupTime(), ids: &r.warmups,
		plan: ragged.FromConfig(m.Scheduled)}
}

// warmup runs the samples of one version.
type warmup struct {
	m       *Model
	samples []sample
	limit   time.Duration
	ids     *atomic.Uint64
	plan    *ragged.Plan
	done    atomic.Int64 // batches that ran at the load
}

// late is why a load fails whose warm-up did not end in time.
func (w *warmup) late(instances int) error {
	all := 0
	for i := range w.samples {
		all += w.samples[i].count * instances
	}
	return infer.Errorf(infer.Unavailable, "warm-up of '%s' version %d did not end in %v (--model-warmup-max-secs): %d of %d batches ran",
		w.m.Name, w.m.Version, w.limit, w.done.Load(), all)
}

// warmupIDs is where the numbers of warm-up batches begin: far from the schedulers'.
const warmupIDs = 1 << 63

// instance runs the samples on one instance until ctx ends, or late is closed; the batch in
// flight is cancelled then, and with late waited for. nil: there is no such limit.
func (w *warmup) instance(ctx context.Context, late <-chan struct{}, e infer.Executor) error {
	for i := range w.samples {
		s := &w.samples[i]
		for range s.count {
			if ctx.Err() != nil {
				return infer.Errorf(infer.Cancelled, "warmup sample '%s' was stopped: %w", s.name, context.Cause(ctx))
			}
			if err := w.run(ctx, late, s, e); err != nil {
				return err
			}
			w.done.Add(1)
		}
	}
	return nil
}

// warmupRun is a batch of a sample under way.
type warmupRun struct {
	infer.Batch
	done chan struct{} // closed with the final result

	mu      sync.Mutex
	errs    []string // mu; distinct
	lost    error    // mu; a batch's own error
	compute infer.ComputeTimes
}

// run executes a sample once and waits for its end.
func (w *warmup) run(ctx context.Context, late <-chan struct{}, s *sample, e infer.Executor) error {
	b, err := w.batch(s)
	if err != nil {
		return err
	}
	start := infer.Now()
	e.Execute(&b.Batch)
	cancel := func() {
		for i := range b.Requests {
			e.Cancel(&b.Batch, i)
		}
	}
	tooLong := false
	select {
	case <-b.done:
	case <-late:
		tooLong = true
		cancel()
	case <-ctx.Done():
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		cancel()
		return infer.Errorf(infer.Cancelled, "warmup sample '%s' was stopped: %w", s.name, context.Cause(ctx))
	}
	if tooLong {
		return infer.Errorf(infer.Unavailable, "it did not end in %v (--model-warmup-max-secs)", w.limit)
	}
	if len(b.errs) > 0 {
		text := fmt.Sprintf("failed to run warmup sample '%s': %s; ", s.name, strings.Join(b.errs, "; "))
		if errors.Is(b.lost, infer.ErrWorkerLost) {
			return infer.Errorf(infer.Unavailable, "%s%w", strings.TrimSuffix(text, b.errs[0]+"; "), b.lost)
		}
		return infer.Errorf(infer.InvalidArg, "%s", text)
	}
	w.count(b, start)
	return nil
}

// batch lays out a sample: requests of one row each.
func (w *warmup) batch(s *sample) (*warmupRun, error) {
	b := &warmupRun{done: make(chan struct{})}
	b.ID = warmupIDs + w.ids.Add(1)
	if w.m.maxBatch > 0 {
		b.Rows = s.size
	}
	for range s.size {
		req := &infer.Request{Model: w.m.Name, Version: w.m.versionText, Inputs: s.inputs, Rows: 1}
		if w.m.Config.GetSequenceBatching() != nil {
			req.SequenceStart, req.SequenceEnd, req.Correlation.ID = true, true, 1
		}
		b.Requests = append(b.Requests, req)
	}
	for i := range s.inputs {
		in, err := w.plan.Gather(s.inputs[i].Name, s.inputs[i].Datatype, b.Requests)
		if err != nil {
			return nil, err
		}
		b.Inputs = append(b.Inputs, in)
	}
	var err error
	b.Inputs, err = w.plan.Compute(b.Inputs, b.Requests)
	b.Deliver = b.deliver
	return b, err
}

func (b *warmupRun) deliver(res *infer.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if res.Err != nil {
		b.lost = res.Err
		b.note(res.Err)
	}
	for i := range res.Responses {
		if err := errorOf(&res.Responses[i]); err != nil {
			b.note(err)
		}
	}
	res.Memory.Release()
	if !res.More {
		b.compute = res.Compute
		close(b.done)
	}
}

// errorOf is the error of a request's answer, whether it is the last or not.
func errorOf(r *infer.RequestResult) error {
	if r.Err == nil && r.Response != nil {
		return r.Response.Err
	}
	return r.Err
}

func (b *warmupRun) note(err error) {
	if text := err.Error(); !slices.Contains(b.errs, text) {
		b.errs = append(b.errs, text)
	}
}

// count puts a sample that was run into the version's statistics.
func (w *warmup) count(b *warmupRun, start int64) {
	if w.m.stats == nil {
		return
	}
	end := infer.Now()
	w.m.stats.Executed(len(b.Requests), max(b.Rows, 1), b.compute)
	for _, req := range b.Requests {
		t := &req.Times
		t.RequestStart, t.QueueStart, t.ComputeStart, t.RequestEnd, t.ComputeEnd = start, start, start, end, end
		t.ComputeOutputStart = max(end-max(b.compute.Output, 0), start)
		t.ComputeInputEnd = max(t.ComputeOutputStart-max(b.compute.Infer, 0), start)
		t.BatchRows = max(b.Rows, 1)
		w.m.stats.Done(req, nil)
	}
}
