package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// DefaultMaxBatchSize is max_batch_size of a model that can batch and whose config is
// silent. Source: backend option default-max-batch-size of the original.
const DefaultMaxBatchSize = 4

// Options say what surrounds a config.
type Options struct {
	Folder  string  // the model's folder name
	Files   []File  // of the model's first version folder; nil where there is none
	Source  *Source // of the config file; nil where there is none
	GPUs    []int32 // CUDA ordinals that workers have
	Tensors bool    // tensors may be completed: not --disable-auto-complete-config
	// Known are all backends of which something is known.
	Known Known
	// Backends are what can be used, workers' own and those that they run for others, by
	// name; nil when no worker was asked.
	Backends map[string]*worker.Backend
	// NoBackend says why no file was found that makes the config's backend, which no worker
	// has; nil: none was looked for.
	NoBackend error
	// DefaultMaxBatchSize of the backend's options; 0: DefaultMaxBatchSize.
	DefaultMaxBatchSize int
}

// backend is what is known of a backend: by a worker's word, or where none has it by what
// was known before.
func (o *Options) backend(name string) *worker.Backend {
	if b := o.Known.Find(name); b != nil {
		return b
	}
	return o.Backends[name]
}

// CompleteBackend is the first part of Complete: name, backend, platform and file name.
// What depends on the backend can be found out after it.
func CompleteBackend(cfg *modelconfig.ModelConfig, opts Options) (notes []string, err error) {
	c := &completion{cfg: cfg, opts: opts}
	err = c.fillBackend()
	return c.notes, opts.Source.Locate(err)
}

// Complete fills in what cfg leaves out, in place, as Triton does it: name, backend,
// platform and file name, version policy, instance groups; with a description of the
// model file also what its backend says of the config, and tensors, max_batch_size and
// dynamic_batching as Triton does it for ONNX models.
// desc may be nil; a second call with desc completes what the first could not. The
// notes say what was filled in, and from what. An error is InvalidArg with Faults:
// the config contradicts the model file.
//
// Beyond the original, a tensor that the config names only in part is completed,
// inputs that it does not name are added, and `max_batch_size: 0` that stands in the
// file is obeyed.
func Complete(cfg *modelconfig.ModelConfig, desc *worker.DescribeResponse, opts Options) (notes []string, err error) {
	c := &completion{cfg: cfg, opts: opts}
	if err := c.fillBackend(); err != nil {
		return nil, opts.Source.Locate(err)
	}
	if desc.GetPatch() != nil && opts.Tensors {
		c.patch(desc.GetPatch())
	}
	if len(desc.GetInputs())+len(desc.GetOutputs()) > 0 {
		if opts.Tensors && Incomplete(cfg) {
			c.fillTensors(desc)
		}
		c.compareTensors(desc)
	}
	c.normalize()
	if opts.Backends != nil {
		c.fillInstanceGroups()
	}
	return c.notes, opts.Source.Locate(c.faults.err())
}

// Incomplete says whether inputs, outputs or parts of them are missing, so that the
// model file has to be read.
func Incomplete(cfg *modelconfig.ModelConfig) bool {
	if cfg.GetEnsembleScheduling() != nil || cfg.Platform == PlatformEnsemble {
		return false
	}
	return len(cfg.Input)+len(cfg.BatchInput) == 0 || len(cfg.Output) == 0 ||
		slices.ContainsFunc(cfg.Input, func(t *modelconfig.ModelInput) bool { return len(t.Dims) == 0 || t.DataType == 0 }) ||
		slices.ContainsFunc(cfg.Output, func(t *modelconfig.ModelOutput) bool { return len(t.Dims) == 0 || t.DataType == 0 })
}

type completion struct {
	cfg    *modelconfig.ModelConfig
	opts   Options
	notes  []string
	faults Faults
}

func (c *completion) notef(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// fillTensors completes max_batch_size, dynamic_batching, inputs and outputs.
// Source: AutoCompleteConfig of the original's onnxruntime backend.
func (c *completion) fillTensors(desc *worker.DescribeResponse) {
	if desc.GetPatch() == nil || desc.Patch.MaxBatchSize == nil {
		c.fillMaxBatch(desc)
	}
	cfg := c.cfg
	optional := cfg.MaxBatchSize == 0 || !c.opts.backend(cfg.Backend).GetUnbatchedOptional()
	internal := c.internalInputs()
	for _, t := range desc.Inputs {
		at := slices.IndexFunc(cfg.Input, func(in *modelconfig.ModelInput) bool { return in.Name == t.Name })
		if at < 0 {
			if internal[t.Name] {
				continue
			}
			cfg.Input = append(cfg.Input, &modelconfig.ModelInput{Name: t.Name, Optional: t.Optional && optional})
			at = len(cfg.Input) - 1
		}
		in := cfg.Input[at]
		if c.fill("input", t, &in.DataType, &in.Dims, &in.Reshape) {
			c.notef("input %q %s %s", t.Name, in.DataType, dimsText(in.Dims))
		}
	}
	all := len(cfg.Output) == 0
	for _, t := range desc.Outputs {
		at := slices.IndexFunc(cfg.Output, func(out *modelconfig.ModelOutput) bool { return out.Name == t.Name })
		if at < 0 {
			// A config may keep outputs to itself, but not when it names none.
			if !all || internal[t.Name] {
				continue
			}
			cfg.Output = append(cfg.Output, &modelconfig.ModelOutput{Name: t.Name})
			at = len(cfg.Output) - 1
		}
		out := cfg.Output[at]
		if c.fill("output", t, &out.DataType, &out.Dims, &out.Reshape) {
			c.notef("output %q %s %s", t.Name, out.DataType, dimsText(out.Dims))
		}
	}
}

// fill completes one tensor and says whether it did.
func (c *completion) fill(what string, t *worker.TensorInfo, dt *modelconfig.DataType, dims *[]int64, reshape **modelconfig.ModelTensorReshape) bool {
	filled := false
	if *dt == modelconfig.DataType_TYPE_INVALID {
		*dt, filled = t.DataType, true
	}
	if len(*dims) > 0 {
		return filled
	}
	own := t.Shape
	if c.cfg.MaxBatchSize > 0 {
		if len(own) == 0 {
			return filled // compareTensors reports it
		}
		own = own[1:]
	}
	*dims = slices.Clone(own)
	if len(own) == 0 {
		*dims = []int64{1}
		// A tensor of rank 1 whose only dimension is the batch's. Scalars of models
		// without a batch dimension keep their one element and need no reshape.
		if c.cfg.MaxBatchSize > 0 && *reshape == nil {
			*reshape = &modelconfig.ModelTensorReshape{}
		}
	}
	return true
}

// fillMaxBatch decides whether the model has a batch dimension: every tensor's first
// dimension must be variable.
func (c *completion) fillMaxBatch(desc *worker.DescribeResponse) {
	cfg := c.cfg
	for _, t := range slices.Concat(desc.Inputs, desc.Outputs) {
		if len(t.Shape) == 0 || t.Shape[0] != -1 {
			if cfg.MaxBatchSize != 0 {
				c.faults.addf("max_batch_size", "autofill failed for model '%s': model does not support batching while non-zero "+
					"max_batch_size is specified: the model file gives '%s' the shape %s; remove max_batch_size or export the "+
					"model with a variable first dimension", cfg.Name, t.Name, dimsText(t.Shape))
			}
			return
		}
	}
	if cfg.MaxBatchSize == 0 {
		if c.opts.Source.Given("max_batch_size") || c.ownDims(desc) {
			return
		}
		size := c.opts.DefaultMaxBatchSize
		if size <= 0 {
			size = DefaultMaxBatchSize
		}
		cfg.MaxBatchSize = int32(size)
		c.notef("max_batch_size %d, since every tensor's first dimension is variable", size)
	}
	if cfg.MaxBatchSize > 1 && cfg.SchedulingChoice == nil {
		cfg.SchedulingChoice = &modelconfig.ModelConfig_DynamicBatching{DynamicBatching: &modelconfig.ModelDynamicBatching{}}
		c.notef("dynamic_batching")
	}
}

// ownDims says that the config gives dims which have the model's whole rank, so their
// writer did not count on a batch dimension.
func (c *completion) ownDims(desc *worker.DescribeResponse) bool {
	rank := func(tensors []*worker.TensorInfo, name string) int {
		for _, t := range tensors {
			if t.Name == name {
				return len(t.Shape)
			}
		}
		return -1
	}
	for _, in := range c.cfg.Input {
		if dims := shapeOf(in.Dims, in.Reshape); len(dims) > 0 && len(dims) == rank(desc.Inputs, in.Name) {
			return true
		}
	}
	for _, out := range c.cfg.Output {
		if dims := shapeOf(out.Dims, out.Reshape); len(dims) > 0 && len(dims) == rank(desc.Outputs, out.Name) {
			return true
		}
	}
	return false
}

// internalInputs are tensors that no client sends: controls, states, batch inputs and
// batch outputs.
func (c *completion) internalInputs() map[string]bool {
	names := map[string]bool{}
	for _, b := range c.cfg.BatchInput {
		for _, n := range b.TargetName {
			names[n] = true
		}
	}
	for _, in := range c.cfg.GetSequenceBatching().GetControlInput() {
		names[in.Name] = true
	}
	for _, s := range c.cfg.GetSequenceBatching().GetState() {
		names[s.InputName], names[s.OutputName] = true, true
	}
	return names
}

// compareTensors checks the config against the model file.
// Source: ValidateInputs, ValidateOutputs and CompareDimsSupported of the original's
// onnxruntime backend; texts likewise.
func (c *completion) compareTensors(desc *worker.DescribeResponse) {
	internal := c.internalInputs()
	need, have := 0, 0 // the inputs that clients have to and may send
	for _, t := range desc.Inputs {
		if internal[t.Name] {
			continue
		}
		have++
		if !t.Optional {
			need++
		}
	}
	// Where the numbers fit, a missing input shows as one that is not the model's.
	if n := len(c.cfg.Input); n < need || n > have {
		c.faults.addf("input", "unable to load model '%s', configuration expects %d inputs, model provides %d: %s",
			c.cfg.Name, n, len(desc.Inputs), tensorNames(desc.Inputs))
	}
	for i, in := range c.cfg.Input {
		path := fmt.Sprintf("input[%d]", i)
		if t := c.find("input", path, in.Name, desc.Inputs); t != nil {
			if in.AllowRaggedBatch {
				continue
			}
			c.compare(path, t, in.DataType, shapeOf(in.Dims, in.Reshape), false)
		}
	}
	for i, out := range c.cfg.Output {
		path := fmt.Sprintf("output[%d]", i)
		if t := c.find("output", path, out.Name, desc.Outputs); t != nil {
			scattered := slices.ContainsFunc(c.cfg.BatchOutput, func(b *modelconfig.BatchOutput) bool {
				return slices.Contains(b.TargetName, out.Name)
			})
			if !scattered {
				c.compare(path, t, out.DataType, shapeOf(out.Dims, out.Reshape), true)
			}
		}
	}
}

func (c *completion) find(what, path, name string, tensors []*worker.TensorInfo) *worker.TensorInfo {
	for _, t := range tensors {
		if t.Name == name {
			return t
		}
	}
	if name == "" {
		return nil // Validate's
	}
	var names []string // that the config doesn't have already
	for _, t := range tensors {
		if !c.configured(what, t.Name) {
			names = append(names, t.Name)
		}
	}
	c.faults.addf(path+".name", "unexpected inference %s '%s', allowed %ss are: %s%s", what, name, what,
		tensorNames(tensors), suggestion(name, names))
	return nil
}

// configured says whether the config has the input or output.
func (c *completion) configured(what, name string) bool {
	if what == "input" {
		return slices.ContainsFunc(c.cfg.Input, func(i *modelconfig.ModelInput) bool { return i.Name == name })
	}
	return slices.ContainsFunc(c.cfg.Output, func(o *modelconfig.ModelOutput) bool { return o.Name == name })
}

func (c *completion) compare(path string, t *worker.TensorInfo, dt modelconfig.DataType, dims []int64, exact bool) {
	what, _, _ := strings.Cut(path, "[")
	if dt != t.DataType && dt != modelconfig.DataType_TYPE_INVALID {
		c.faults.addf(path+".data_type", "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s",
			c.cfg.Name, dt, what, t.Name, t.DataType)
	}
	path += ".dims"
	if len(t.Shape) == 0 && c.cfg.MaxBatchSize == 0 {
		if slices.ContainsFunc(dims, func(d int64) bool { return d != 1 }) {
			c.faults.addf(path, "unable to load model '%s', scalar tensor '%s', should only provide 1 in the model configuration "+
				"when the model doesn't support batching. Model configuration provided: %s.", c.cfg.Name, t.Name, dimsText(dims))
		}
		return
	}
	if c.cfg.MaxBatchSize == 0 {
		if !fits(t.Shape, dims, exact) {
			c.faults.addf(path, "model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model configuration "+
				"specifies %d dimensions (shape %s)", c.cfg.Name, t.Name, len(t.Shape), dimsText(t.Shape), len(dims), dimsText(dims))
		}
		return
	}
	if len(t.Shape) == 0 || t.Shape[0] != -1 {
		if len(c.faults) == 0 { // fillMaxBatch said it already
			c.faults.addf(path, "model '%s', tensor '%s': for the model to support batching the shape should have at least 1 dimension "+
				"and the first dimension must be -1; but shape expected by the model is %s", c.cfg.Name, t.Name, dimsText(t.Shape))
		}
		return
	}
	full := append([]int64{-1}, dims...)
	if !fits(t.Shape, full, exact) {
		c.faults.addf(path, "model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model configuration specifies "+
			"%d dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "+
			"complete shape %s)", c.cfg.Name, t.Name, len(t.Shape), dimsText(t.Shape), len(full), dimsText(full))
	}
}

// fits compares dimension by dimension; inputs may be narrower than the model's.
func fits(model, dims []int64, exact bool) bool {
	return slices.EqualFunc(model, dims, func(m, d int64) bool { return m == d || !exact && m == -1 })
}

func shapeOf(dims []int64, reshape *modelconfig.ModelTensorReshape) []int64 {
	if reshape != nil {
		return reshape.Shape
	}
	return dims
}

func tensorNames(tensors []*worker.TensorInfo) string {
	var names []string
	for _, t := range tensors {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func dimsText(dims []int64) string {
	return strings.ReplaceAll(fmt.Sprint(dims), " ", ",")
}
