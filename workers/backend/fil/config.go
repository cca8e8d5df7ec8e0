package fil

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// The tensors of every model.
const (
	inputName  = "input__0"
	outputName = "output__0"
	shapName   = "treeshap_output"
)

// completedBatch is max_batch_size of a config without tensors. Rows are cheap; Triton's documentation proposes as many.
const completedBatch = 32768

// settings are the parameters of a model.
type settings struct {
	format     *format // nil: by the file's content
	classifier *bool   // nil: by the model's task
	proba      bool
	threshold  float64
	unknown    bool     // fields that treelite does not know are skipped
	threads    int      // that evaluate the rows of a batch
	unused     []string // what was given and does nothing, as sentences
}

// Parameters that are for GPUs alone, and those that Triton has removed.
var (
	gpuKeys     = []string{"layout", "chunk_size", "transfer_threshold", "algo", "storage_type", "threads_per_tree", "blocks_per_sm"}
	removedKeys = []string{"use_experimental_optimizations"}
)

// newSettings reads the parameters. Source: docs/model_config.md of Triton's FIL backend; model_type, is_classifier and
// threshold may be left out here.
func newSettings(cfg *modelconfig.ModelConfig) (*settings, error) {
	s := &settings{threshold: 0.5, threads: 1}
	p := cfg.GetParameters()
	if v := p["model_type"].GetStringValue(); v != "" {
		at := slices.IndexFunc(formats, func(f format) bool { return f.modelType == v })
		if at < 0 {
			return nil, fmt.Errorf("parameter 'model_type' is '%s', and not one of %s", v, modelTypes())
		}
		s.format = &formats[at]
	}
	for _, key := range []string{"output_class", "is_classifier"} { // the second is what the first is called now
		v, ok := p[key]
		if !ok {
			continue
		}
		is, err := parseBool(v.GetStringValue())
		if err != nil {
			return nil, fmt.Errorf("parameter '%s': %w", key, err)
		}
		s.classifier = &is
	}
	for key, to := range map[string]*bool{"predict_proba": &s.proba, "xgboost_allow_unknown_field": &s.unknown} {
		v, ok := p[key]
		if !ok {
			continue
		}
		var err error
		if *to, err = parseBool(v.GetStringValue()); err != nil {
			return nil, fmt.Errorf("parameter '%s': %w", key, err)
		}
	}
	if v, ok := p["threshold"]; ok {
		var err error
		if s.threshold, err = strconv.ParseFloat(v.GetStringValue(), 64); err != nil || s.threshold != s.threshold {
			return nil, fmt.Errorf("parameter 'threshold': '%s' is no number", v.GetStringValue())
		}
	}
	if v, ok := p["cpu_nthread"]; ok {
		n, err := strconv.Atoi(v.GetStringValue())
		if err != nil || n < -1 || n > 1024 {
			return nil, fmt.Errorf("parameter 'cpu_nthread': '%s' is no number of threads (1 to 1024; -1: one for each processor)", v.GetStringValue())
		}
		if s.threads = n; n < 1 {
			s.threads = runtime.GOMAXPROCS(0)
		}
	}
	s.unused = unused(p)
	return s, nil
}

// unused says which parameters do nothing.
func unused(p map[string]*modelconfig.ModelParameter) []string {
	var all []string
	for key := range p {
		switch {
		case slices.Contains(gpuKeys, key):
			all = append(all, fmt.Sprintf("parameter '%s' is not used: it is for GPUs, and trees are computed on the CPU", key))
		case slices.Contains(removedKeys, key):
			all = append(all, fmt.Sprintf("parameter '%s' is not used: Triton has removed it", key))
		}
	}
	slices.Sort(all)
	return all
}

func parseBool(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("'%s' is neither true nor false", v)
}

// classifies says whether answers are classes.
func (s *settings) classifies(f *forest.Forest) bool {
	if s.classifier != nil {
		return *s.classifier
	}
	return f.Task.Classifies()
}

// patch is what the file tells of the config's tensors, where the config does not.
func patch(cfg *modelconfig.ModelConfig, f *forest.Forest, s *settings) *worker.ConfigPatch {
	real := modelconfig.DataType_TYPE_FP32
	if f.Wide {
		real = modelconfig.DataType_TYPE_FP64
	}
	p := &worker.ConfigPatch{}
	in := &modelconfig.ModelInput{Name: inputName}
	if c := inputOf(cfg); c.GetDataType() == modelconfig.DataType_TYPE_INVALID {
		in.DataType = real
	}
	if len(inputOf(cfg).GetDims()) == 0 {
		in.Dims = []int64{int64(f.Features)}
	}
	out := &modelconfig.ModelOutput{Name: outputName}
	if c := outputOf(cfg); c.GetDataType() == modelconfig.DataType_TYPE_INVALID {
		out.DataType = real
	}
	if len(outputOf(cfg).GetDims()) == 0 {
		out.Dims = newOutput(f, s).dims()
	}
	p.Input, p.Output = []*modelconfig.ModelInput{in}, []*modelconfig.ModelOutput{out}
	if len(cfg.GetInput()) == 0 && cfg.GetMaxBatchSize() == 0 {
		size := int32(completedBatch)
		p.MaxBatchSize = &size
		p.DynamicBatching = &modelconfig.ModelDynamicBatching{}
		if cfg.GetSequenceBatching() != nil {
			p.DynamicBatching = nil
		}
	}
	return p
}

func inputOf(cfg *modelconfig.ModelConfig) *modelconfig.ModelInput {
	for _, t := range cfg.GetInput() {
		if t.GetName() == inputName {
			return t
		}
	}
	return nil
}

func outputOf(cfg *modelconfig.ModelConfig) *modelconfig.ModelOutput {
	for _, t := range cfg.GetOutput() {
		if t.GetName() == outputName {
			return t
		}
	}
	return nil
}

// check compares the config's tensors with the model's.
func check(cfg *modelconfig.ModelConfig, f *forest.Forest) error {
	in, out := inputOf(cfg), outputOf(cfg)
	for _, t := range cfg.GetOutput() {
		if t.GetName() == shapName {
			return fmt.Errorf("output '%s' is not supported: there are no SHAP values here", shapName)
		}
	}
	if in == nil || out == nil || len(cfg.GetInput()) != 1 || len(cfg.GetOutput()) != 1 {
		return fmt.Errorf("a model of trees has one input, '%s', and one output, '%s'", inputName, outputName)
	}
	if !isReal(in.GetDataType()) || !isReal(out.GetDataType()) {
		return fmt.Errorf("'%s' and '%s' are TYPE_FP32 or TYPE_FP64, and the config has %v and %v", inputName, outputName, in.GetDataType(), out.GetDataType())
	}
	if in.GetAllowRaggedBatch() || in.GetOptional() {
		return errors.New("the input can't be ragged or optional")
	}
	dims := shapeOf(in)
	if cfg.GetMaxBatchSize() == 0 && len(dims) == 2 { // rows, without a batch dimension
		dims = dims[1:]
	}
	if len(dims) != 1 || dims[0] != int64(f.Features) && dims[0] != -1 {
		return fmt.Errorf("the model has %d features, and the dims of '%s' are %v", f.Features, inputName, shapeOf(in))
	}
	return nil
}

func isReal(d modelconfig.DataType) bool {
	return d == modelconfig.DataType_TYPE_FP32 || d == modelconfig.DataType_TYPE_FP64
}

type tensor interface {
	GetReshape() *modelconfig.ModelTensorReshape
	GetDims() []int64
}

// shapeOf is a tensor's shape as the backend sees it.
func shapeOf(t tensor) []int64 {
	if r := t.GetReshape(); r != nil {
		return r.GetShape()
	}
	return t.GetDims()
}
