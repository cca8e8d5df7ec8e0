package modelconfig

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// PlatformEnsemble is the platform of models that are made of other models.
const PlatformEnsemble = "ensemble"

// sequenceIdle is max_sequence_idle_microseconds where a config is silent.
const sequenceIdle = time.Second

// Flavour is what config, folder and model file say about one kind of model.
type Flavour struct {
	Backend  string
	Platform string // "" where the backend has no platform name
	Filename string // of the model file or folder in a version folder
	folder   kindOfFile
}

type kindOfFile uint8

const (
	anyKind kindOfFile = iota
	onlyFile
	onlyFolder
)

// flavours stand in the order in which a silent config is tried against a folder.
// Source: the original's constants.h and its backend auto-completion.
var flavours = []Flavour{
	{"tensorflow", "tensorflow_savedmodel", "model.savedmodel", onlyFolder},
	{"tensorflow", "tensorflow_graphdef", "model.graphdef", onlyFile},
	{"tensorrt", "tensorrt_plan", "model.plan", onlyFile},
	{"onnxruntime", "onnxruntime_onnx", "model.onnx", anyKind},
	{"openvino", "", "model.xml", anyKind},
	{"pytorch", "pytorch_libtorch", "model.pt", onlyFile},
	{"pytorch", "libtorch", "model.pt", onlyFile},
	{"pytorch", "torch_aoti", "model.pt2", onlyFile},
	{"python", "", "model.py", anyKind},
}

// KnownBackends are the backends that have a platform or a file name of their own.
func KnownBackends() []string {
	var names []string
	for _, f := range flavours {
		names = append(names, f.Backend)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ModelFilenames are the names that model files have by default.
func ModelFilenames() []string {
	var names []string
	for _, f := range flavours {
		names = append(names, f.Filename)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func platforms() []string {
	names := []string{PlatformEnsemble}
	for _, f := range flavours {
		if f.Platform != "" {
			names = append(names, f.Platform)
		}
	}
	return names
}

// File is one entry of a version folder.
type File struct {
	Name string
	Dir  bool
}

// fillBackend fills name, backend, platform and default_model_filename from each
// other, from the files in the first version folder, and from a model's own name
// "x.<backend>".
func (c *completion) fillBackend() error {
	cfg := c.cfg
	if cfg.Name == "" {
		cfg.Name = c.opts.Folder
	}
	if cfg.Platform == PlatformEnsemble || cfg.GetEnsembleScheduling() != nil && cfg.Backend == "" && cfg.Platform == "" {
		if cfg.Platform == "" {
			cfg.Platform = PlatformEnsemble
			c.notef("platform %q, from ensemble_scheduling", cfg.Platform)
		}
		return nil
	}
	f, from := c.flavour()
	if f == nil {
		return c.backendFromName()
	}
	if cfg.Backend == "" {
		cfg.Backend = f.Backend
		c.notef("backend %q, from %s", f.Backend, from)
	}
	if cfg.Platform == "" && f.Platform != "" {
		cfg.Platform = f.Platform
		c.notef("platform %q, from %s", f.Platform, from)
	}
	if cfg.DefaultModelFilename == "" {
		cfg.DefaultModelFilename = f.Filename
		c.notef("default_model_filename %q, from %s", f.Filename, from)
	}
	return nil
}

// flavour finds the kind of model that the config names, or where it names nothing
// the folder's files.
func (c *completion) flavour() (f *Flavour, from string) {
	cfg := c.cfg
	for i := range flavours {
		f := &flavours[i]
		switch {
		case cfg.Backend != "" && cfg.Backend != f.Backend:
		case cfg.Platform != "" && cfg.Platform != f.Platform:
		case cfg.Platform != "":
			return f, fmt.Sprintf("platform %q", cfg.Platform)
		case cfg.Backend != "" && (cfg.DefaultModelFilename == f.Filename || cfg.Backend != "tensorflow" && cfg.Backend != "pytorch"):
			return f, fmt.Sprintf("backend %q", cfg.Backend)
		case cfg.DefaultModelFilename == f.Filename:
			return f, "default_model_filename"
		case cfg.DefaultModelFilename == "" && c.holds(f):
			return f, fmt.Sprintf("the file %s", f.Filename)
		}
	}
	if cfg.Backend == "pytorch" && cfg.Platform == "" {
		return &Flavour{Backend: "pytorch", Platform: "pytorch_libtorch", Filename: "model.pt"}, `backend "pytorch"`
	}
	return nil, ""
}

func (c *completion) holds(f *Flavour) bool {
	for _, file := range c.opts.Files {
		if file.Name == f.Filename {
			return f.folder == anyKind || file.Dir == (f.folder == onlyFolder)
		}
	}
	return false
}

// backendFromName takes the backend of "x.<backend>" for a config that says nothing.
// Source: the original's custom backends; text of the error likewise.
func (c *completion) backendFromName() error {
	cfg := c.cfg
	if cfg.Backend != "" || cfg.Platform != "" || cfg.DefaultModelFilename != "" {
		return nil // Validate says what is wrong, if anything is
	}
	_, backend, ok := strings.Cut(c.opts.Folder, ".")
	if !ok || backend == "" {
		return infer.Errorf(infer.InvalidArg, "%w", Faults{{Msg: fmt.Sprintf("Invalid model name: Could not determine backend for model '%s' "+
			"with no backend in model configuration. Expected model name of the form 'model.<backend_name>'.", c.opts.Folder)}})
	}
	cfg.Backend, cfg.DefaultModelFilename = backend, "model."+backend
	c.notef("backend %q, from the model's name", backend)
	c.notef("default_model_filename %q, from the model's name", cfg.DefaultModelFilename)
	return nil
}

// normalize fills what needs no model: version policy, preferred batch sizes, sequence
// idle time, pinned memory.
func (c *completion) normalize() {
	cfg := c.cfg
	if cfg.GetVersionPolicy().GetPolicyChoice() == nil {
		cfg.VersionPolicy = &modelconfig.ModelVersionPolicy{PolicyChoice: &modelconfig.ModelVersionPolicy_Latest_{
			Latest: &modelconfig.ModelVersionPolicy_Latest{NumVersions: 1}}}
	}
	if d := cfg.GetDynamicBatching(); d != nil && len(d.PreferredBatchSize) == 0 && cfg.MaxBatchSize > 0 {
		d.PreferredBatchSize = []int32{cfg.MaxBatchSize}
	}
	if s := cfg.GetSequenceBatching(); s != nil {
		if s.MaxSequenceIdleMicroseconds == 0 {
			s.MaxSequenceIdleMicroseconds = uint64(sequenceIdle.Microseconds())
		}
		if o := s.GetOldest(); o != nil && len(o.PreferredBatchSize) == 0 && cfg.MaxBatchSize > 0 {
			o.PreferredBatchSize = []int32{cfg.MaxBatchSize}
		}
	}
	if cfg.GetEnsembleScheduling() != nil {
		return
	}
	if cfg.Optimization == nil {
		cfg.Optimization = &modelconfig.ModelOptimizationPolicy{}
	}
	if cfg.Optimization.InputPinnedMemory == nil {
		cfg.Optimization.InputPinnedMemory = &modelconfig.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
	if cfg.Optimization.OutputPinnedMemory == nil {
		cfg.Optimization.OutputPinnedMemory = &modelconfig.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
}

// fillInstanceGroups names the groups and settles kind, count and GPUs.
// Source: the original's instance group normalisation; two CPU instances for
// onnxruntime and tensorflow are its default, too.
func (c *completion) fillInstanceGroups() {
	cfg := c.cfg
	if cfg.GetEnsembleScheduling() != nil {
		return
	}
	gpus := c.opts.GPUs
	if !c.opts.Backends[cfg.Backend].GPU {
		gpus = nil
	}
	silent := len(cfg.InstanceGroup) == 0
	if silent {
		cfg.InstanceGroup = []*modelconfig.ModelInstanceGroup{{Name: cfg.Name}}
	}
	for i, g := range cfg.InstanceGroup {
		if g.Name == "" {
			g.Name = fmt.Sprintf("%s_%d", cfg.Name, i)
		}
		if g.Kind == modelconfig.ModelInstanceGroup_KIND_AUTO {
			g.Kind = modelconfig.ModelInstanceGroup_KIND_GPU
			if len(gpus) == 0 || slices.ContainsFunc(g.Gpus, func(id int32) bool { return !slices.Contains(gpus, id) }) {
				g.Kind = modelconfig.ModelInstanceGroup_KIND_CPU
			}
		}
		cpu := g.Kind == modelconfig.ModelInstanceGroup_KIND_CPU
		if g.Count == 0 {
			g.Count = 1
			if cpu && (cfg.Backend == "onnxruntime" || cfg.Backend == "tensorflow") {
				g.Count = 2
			}
		}
		if g.Kind == modelconfig.ModelInstanceGroup_KIND_GPU && len(g.Gpus) == 0 {
			g.Gpus = slices.Clone(gpus)
		}
	}
	if silent {
		g := cfg.InstanceGroup[0]
		c.notef("instance_group %s, %d instance(s)", g.Kind, int(g.Count)*max(1, len(g.Gpus)))
	}
}
