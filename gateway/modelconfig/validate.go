package modelconfig

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// maxInstances bounds the instances of one group, so that a typing error in count
// does not take the machine down.
const maxInstances = 1024

// maxAllInstances bounds the instances of all groups together: no sixteen workers have room for
// more.
const maxAllInstances = 16 * maxInstances

// Validate checks a completed config as the original does, with its texts where it has
// one, and reports all faults at once: InvalidArg with Faults. Limits that only a
// machine can tell are checked where opts names its Backends and GPUs.
// Source: ValidateModelConfig, ValidateModelIOConfig and ValidateInstanceGroup of the
// original's model_config_utils.cc.
func Validate(cfg *modelconfig.ModelConfig, opts Options) error {
	v := &validation{cfg: cfg, opts: opts}
	v.identity()
	if cfg.MaxBatchSize < 0 {
		v.addf("max_batch_size", "'max_batch_size' must be non-negative value for %s", cfg.Name)
	}
	v.versionPolicy()
	v.inputs()
	v.outputs()
	v.batchIO()
	v.scheduling()
	v.ensemble()
	v.instanceGroups()
	v.modelMetrics()
	v.warmup()
	return opts.Source.Locate(v.err())
}

type validation struct {
	cfg  *modelconfig.ModelConfig
	opts Options
	Faults
}

// identity checks name, platform, backend and the model file's name.
func (v *validation) identity() {
	cfg := v.cfg
	switch {
	case cfg.Name == "":
		v.addf("name", "model configuration must specify 'name'")
	case cfg.Name != v.opts.Folder && v.opts.Folder != "":
		v.addf("name", "unexpected directory name '%s' for model '%s', directory name must equal model name", v.opts.Folder, cfg.Name)
	}
	switch {
	case cfg.Platform == PlatformEnsemble && cfg.Backend != "":
		v.addf("backend", "Ensemble model '%s' must have platform type '%s' and empty backend type", cfg.Name, cfg.Platform)
	case cfg.Platform == PlatformEnsemble:
	case cfg.Backend == "" && cfg.Platform == "":
		v.addf("", "must specify 'platform' or 'backend' for '%s'", cfg.Name)
	case cfg.Backend == "":
		hint := suggestion(cfg.Platform, v.opts.Known.platforms())
		if hint == "" {
			hint = `; a backend without a platform name of its own is named with "backend"`
		}
		v.addf("platform", "unexpected platform type '%s' for %s%s", cfg.Platform, cfg.Name, hint)
	default:
		v.backend()
	}
	if !SafePath(cfg.DefaultModelFilename) && cfg.DefaultModelFilename != "" {
		v.addf("default_model_filename", "default_model_filename %q must be a path inside the version folder", cfg.DefaultModelFilename)
	}
}

// backend checks that the pair of platform and backend fits and that a worker has it.
func (v *validation) backend() {
	cfg := v.cfg
	if b := v.opts.backend(cfg.Backend); len(b.GetFormats()) > 0 && formatOf(b, cfg.Platform) == nil {
		v.addf("platform", "unexpected 'platform' and 'backend' pair, got:%s, %s", cfg.Platform, cfg.Backend)
	}
	if v.opts.Backends == nil {
		return
	}
	var names []string
	for name, b := range v.opts.Backends {
		if name == cfg.Backend {
			if b.GetUnavailable() != "" {
				get := ""
				if command := b.GetEngine().GetGet(); command != "" {
					get = " (" + command + ")"
				}
				v.addf("backend", "backend '%s' of model '%s' can't be used: %s%s", name, cfg.Name, b.GetUnavailable(), get)
			}
			return
		}
		names = append(names, name)
	}
	sort.Strings(names)
	list := strings.Join(names, ", ")
	if list == "" {
		list = "none"
	}
	path := "backend"
	if !v.opts.Source.Given(path) && v.opts.Source.Given("platform") {
		path = "platform" // the backend was completed from it
	}
	none := v.opts.NoBackend
	if none == nil {
		none = NoLibrary(cfg.Backend)
	}
	v.addf(path, "%s (no worker has backend '%s' of model '%s'; there are: %s%s)", none, cfg.Backend, cfg.Name, list,
		suggestion(cfg.Backend, names))
}

// NoLibrary is what Triton says where no folder has a backend.
// Source: backend_model.cc of Triton.
func NoLibrary(backend string) error {
	return fmt.Errorf("unable to find backend library for backend '%s', %s", backend,
		"try specifying runtime on the model configuration.")
}

// SafePath says that a path from a config stays in its folder by its text: relative,
// without "..", NUL or backslash. Symbolic links are checked when it is opened.
func SafePath(path string) bool {
	return filepath.IsLocal(path) && !strings.ContainsAny(path, "\x00\\")
}

func (v *validation) versionPolicy() {
	switch p := v.cfg.GetVersionPolicy().GetPolicyChoice().(type) {
	case nil:
		v.addf("version_policy", "must specify 'version policy' for %s", v.cfg.Name)
	case *modelconfig.ModelVersionPolicy_Latest_:
		if p.Latest.NumVersions == 0 {
			v.addf("version_policy.latest", "version_policy.latest must have num_versions >= 1 for %s", v.cfg.Name)
		}
	case *modelconfig.ModelVersionPolicy_Specific_:
		if len(p.Specific.Versions) == 0 {
			v.addf("version_policy.specific", "version_policy.specific must list versions for %s", v.cfg.Name)
		}
		for _, n := range p.Specific.Versions {
			if n < 1 {
				v.addf("version_policy.specific.versions", "version %d is not a positive number for %s", n, v.cfg.Name)
			}
		}
	}
}

func (v *validation) inputs() {
	seen := map[string]bool{}
	for i, in := range v.cfg.Input {
		path := fmt.Sprintf("input[%d]", i)
		if seen[in.Name] && in.Name != "" {
			v.addf(path+".name", "model input '%s' is given twice for %s", in.Name, v.cfg.Name)
		}
		seen[in.Name] = true
		v.tensor(path, "model input ", tensorSpec{in.Name, in.DataType, in.Dims, in.Reshape, in.IsShapeTensor, in.IsNonLinearFormatIo})
		if in.Format != modelconfig.ModelInput_FORMAT_NONE && len(in.Dims) != 3 {
			v.addf(path+".format", "model input NHWC/NCHW require 3 dims for %s", v.cfg.Name)
		}
		if in.Optional && v.cfg.MaxBatchSize != 0 && v.opts.backend(v.cfg.Backend).GetUnbatchedOptional() {
			v.addf(path+".optional", "unable to load model '%s', optional input '%s' is not supported for models that support batching",
				v.cfg.Name, in.Name)
		}
	}
}

func (v *validation) outputs() {
	seen := map[string]bool{}
	for i, out := range v.cfg.Output {
		path := fmt.Sprintf("output[%d]", i)
		if seen[out.Name] && out.Name != "" {
			v.addf(path+".name", "model output '%s' is given twice for %s", out.Name, v.cfg.Name)
		}
		seen[out.Name] = true
		v.tensor(path, "model output ", tensorSpec{out.Name, out.DataType, out.Dims, out.Reshape, out.IsShapeTensor, out.IsNonLinearFormatIo})
		if out.LabelFilename != "" && !SafePath(out.LabelFilename) {
			v.addf(path+".label_filename", "label file path '%s' for output '%s' in model '%s' is outside model directory",
				out.LabelFilename, out.Name, v.cfg.Name)
		}
	}
}

type tensorSpec struct {
	name      string
	datatype  modelconfig.DataType
	dims      []int64
	reshape   *modelconfig.ModelTensorReshape
	shape     bool // shape tensor
	nonLinear bool
}

func (v *validation) tensor(path, prefix string, t tensorSpec) {
	add := func(field, format string, args ...any) {
		v.addf(path+field, prefix+format+" for "+v.cfg.Name, args...)
	}
	if t.name == "" {
		add("", "must specify 'name'")
		return
	}
	prefix += "'" + t.name + "' "
	if t.datatype == modelconfig.DataType_TYPE_INVALID {
		add(".data_type", "must specify 'data_type'")
	}
	if len(t.dims) == 0 {
		add(".dims", "must specify 'dims'")
	} else if len(t.dims) >= infer.MaxRank {
		add(".dims", "has %d dimensions, the most is %d", len(t.dims), infer.MaxRank-1)
	} else if !positive(t.dims) {
		add(".dims", "dimension must be integer >= 1, or -1 to indicate a variable-size dimension")
	} else {
		v.reshape(path+".reshape", prefix, t)
	}
	if v.format().GetShapeTensors() {
		if t.nonLinear && len(t.dims) != 3 {
			v.addf(path, "Non-linear IO format %s requires 3 dims for %s", strings.Fields(prefix)[1], v.cfg.Name)
		}
		return
	}
	if t.shape {
		v.addf(path+".is_shape_tensor", "shape tensors are only supported for TensorRT platform for %s", v.cfg.Name)
	}
	if t.nonLinear {
		v.addf(path+".is_non_linear_format_io", "Non-linear IO format is only supported for the TensorRT platform for %s", v.cfg.Name)
	}
}

func positive(dims []int64) bool {
	return !slices.ContainsFunc(dims, func(d int64) bool { return d < 1 && d != -1 })
}

// reshape checks that dims and reshape have equally many elements between the variable
// dimensions, so [2,4,-1,6] may become [8,-1,1,6].
func (v *validation) reshape(path, prefix string, t tensorSpec) {
	if t.reshape == nil {
		return
	}
	switch {
	case len(t.reshape.Shape) == 0 && v.cfg.MaxBatchSize == 0:
		v.addf(path, "%scannot have empty reshape for non-batching model as scalar tensors are not supported for %s", prefix, v.cfg.Name)
		return
	case len(t.reshape.Shape) >= infer.MaxRank:
		v.addf(path, "%sreshape has %d dimensions, the most is %d for %s", prefix, len(t.reshape.Shape), infer.MaxRank-1, v.cfg.Name)
		return
	case !positive(t.reshape.Shape):
		v.addf(path, "%sreshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for %s", prefix, v.cfg.Name)
		return
	}
	have, okHave := runs(t.dims)
	want, okWant := runs(t.reshape.Shape)
	switch {
	case !okHave || !okWant:
		v.addf(path, "%shas more elements than fit in 64 bits for %s", prefix, v.cfg.Name)
	case len(have) != len(want) && len(have) > 1 && len(want) > 1:
		v.addf(path, "%shas different number of variable-size dimensions for dims and reshape for %s", prefix, v.cfg.Name)
	case !slices.Equal(have, want):
		v.addf(path, "%shas different size for dims and reshape for %s", prefix, v.cfg.Name)
	}
}

// runs multiplies the dimensions before, between and behind the variable ones.
func runs(dims []int64) (products []int64, ok bool) {
	n := int64(1)
	for _, d := range dims {
		if d == -1 {
			products, n = append(products, n), 1
			continue
		}
		if n > math.MaxInt64/d {
			return nil, false
		}
		n *= d
	}
	return append(products, n), true
}

func (v *validation) batchIO() {
	inputs, outputs := map[string]bool{}, map[string]bool{}
	for _, in := range v.cfg.Input {
		inputs[in.Name] = true
	}
	for _, out := range v.cfg.Output {
		outputs[out.Name] = true
	}
	sources := func(path string, names []string) {
		for _, n := range names {
			if !inputs[n] {
				v.addf(path+".source_input", "unknown source input name '%s' for %s", n, v.cfg.Name)
			}
		}
	}
	for i, b := range v.cfg.BatchInput {
		path := fmt.Sprintf("batch_input[%d]", i)
		if _, ok := modelconfig.BatchInput_Kind_name[int32(b.Kind)]; !ok {
			v.addf(path+".kind", "unknown batch input kind '%d' for %s", b.Kind, v.cfg.Name)
		}
		if len(b.SourceInput) != 1 {
			v.addf(path, "batch input kind '%s' expects 1 source input, got %d for %s", b.Kind, len(b.SourceInput), v.cfg.Name)
		}
		if b.DataType != modelconfig.DataType_TYPE_INT32 && b.DataType != modelconfig.DataType_TYPE_FP32 {
			v.addf(path+".data_type", "batch input data type must be TYPE_INT32 or TYPE_FP32 for %s", v.cfg.Name)
		}
		sources(path, b.SourceInput)
	}
	for i, b := range v.cfg.BatchOutput {
		path := fmt.Sprintf("batch_output[%d]", i)
		if _, ok := modelconfig.BatchOutput_Kind_name[int32(b.Kind)]; !ok {
			v.addf(path+".kind", "unknown batch output kind '%d' for %s", b.Kind, v.cfg.Name)
		}
		if len(b.SourceInput) != 1 {
			v.addf(path, "batch output kind '%s' expects 1 source input, got %d for %s", b.Kind, len(b.SourceInput), v.cfg.Name)
		}
		sources(path, b.SourceInput)
		targets := map[string]bool{}
		for _, n := range b.TargetName {
			if !outputs[n] {
				v.addf(path+".target_name", "unknown target output name '%s' for %s", n, v.cfg.Name)
			}
			if targets[n] {
				v.addf(path+".target_name", "target output name '%s' can only be specified once for %s", n, v.cfg.Name)
			}
			targets[n] = true
			v.scatter(path, n, b.SourceInput)
		}
	}
}

// scatter checks that the output's variable dimensions can be taken from the source's,
// at the same places.
func (v *validation) scatter(path, output string, sources []string) {
	dims, rank := []int64(nil), -1
	for _, o := range v.cfg.Output {
		if o.Name == output {
			dims = o.Dims
			if o.Reshape != nil {
				dims = o.Reshape.Shape
			}
		}
	}
	for _, in := range v.cfg.Input {
		if len(sources) > 0 && in.Name == sources[0] {
			rank = len(in.Dims)
			if in.Reshape != nil {
				rank = len(in.Reshape.Shape)
			}
		}
	}
	for i, d := range dims {
		if d == -1 && rank >= 0 && i >= rank {
			v.addf(path, "output '%s' takes its variable dimension %d from source input '%s', which has %d dimensions for %s", output, i,
				sources[0], rank, v.cfg.Name)
		}
	}
}

// instanceGroups checks groups that were completed; before that there is nothing to say.
func (v *validation) instanceGroups() {
	cfg := v.cfg
	if cfg.GetEnsembleScheduling() != nil {
		return
	}
	all := int64(0)
	for _, g := range cfg.InstanceGroup {
		all += int64(max(g.Count, 0)) * int64(max(len(g.Gpus), 1))
	}
	if all > maxAllInstances {
		v.addf("instance_group", "model %s has %d instances in its %d instance groups, the most is %d", cfg.Name, all, len(cfg.InstanceGroup), maxAllInstances)
		return // each of them would be told of
	}
	if v.opts.Backends == nil {
		return
	}
	if len(cfg.InstanceGroup) == 0 {
		v.addf("instance_group", "must specify one or more 'instance group's for %s", cfg.Name)
	}
	for i, g := range cfg.InstanceGroup {
		path := fmt.Sprintf("instance_group[%d]", i)
		add := func(field, format string, args ...any) {
			v.addf(path+field, "instance group "+g.Name+" of model "+cfg.Name+" "+format, args...)
		}
		if g.Count < 1 || g.Count > maxInstances {
			add(".count", "has count %d, which must be in range [1, %d]", g.Count, maxInstances)
		}
		switch g.Kind {
		case modelconfig.ModelInstanceGroup_KIND_GPU:
			v.gpus(g, add)
		case modelconfig.ModelInstanceGroup_KIND_CPU, modelconfig.ModelInstanceGroup_KIND_MODEL:
			if len(g.Gpus) > 0 {
				add(".gpus", "has kind %s but specifies one or more GPUs", g.Kind)
			}
			v.kind(g, add)
		default:
			add(".kind", "has unexpected kind %s", g.Kind)
		}
		for _, p := range g.Profile {
			if !v.format().GetProfiles() {
				add(".profile", "and platform %s specifies profile field which is only supported for TensorRT models", cfg.Platform)
				break
			}
			if n, err := strconv.Atoi(p); err != nil || n < 0 {
				add(".profile", "and platform %s specifies invalid profile %s. The field should contain the string representation of a "+
					"non-negative integer.", cfg.Platform, p)
			}
		}
	}
}

// kind checks a kind of instances against those that the backend makes. One that says
// nothing makes all, and whether there are GPUs is checked elsewhere.
func (v *validation) kind(g *modelconfig.ModelInstanceGroup, add func(field, format string, args ...any)) {
	places := v.opts.backend(v.cfg.Backend).GetPlacements()
	var kinds []string
	for _, p := range places {
		if kindOf(p) == g.Kind {
			return
		}
		kinds = append(kinds, kindOf(p).String())
	}
	if len(places) > 0 && g.Kind == modelconfig.ModelInstanceGroup_KIND_CPU {
		add(".kind", "has kind %s, backend '%s' makes instances of kind %s", g.Kind, v.cfg.Backend, strings.Join(kinds, ", "))
	}
}

// format is what the config's backend says of its platform; nil: nothing.
func (v *validation) format() *worker.ModelFormat {
	return formatOf(v.opts.backend(v.cfg.Backend), v.cfg.Platform)
}

func (v *validation) gpus(g *modelconfig.ModelInstanceGroup, add func(field, format string, args ...any)) {
	switch {
	case len(v.opts.GPUs) == 0:
		add(".kind", "has kind KIND_GPU but no GPUs are available")
		return
	case !v.opts.Backends[v.cfg.Backend].GetGpu():
		add(".kind", "has kind KIND_GPU but backend '%s' can't use GPUs here", v.cfg.Backend)
		return
	case len(g.Gpus) == 0:
		add(".gpus", "has kind KIND_GPU but specifies no GPUs")
	}
	for _, id := range g.Gpus {
		if !slices.Contains(v.opts.GPUs, id) {
			add(".gpus", "specifies invalid or unsupported gpu id %d. GPUs that workers have are: %s", id,
				strings.Trim(fmt.Sprint(v.opts.GPUs), "[]"))
		}
	}
}
