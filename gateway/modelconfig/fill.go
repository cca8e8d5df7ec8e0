package modelconfig

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// PlatformEnsemble is the platform of models that are made of other models.
const PlatformEnsemble = "ensemble"

// sequenceIdle is max_sequence_idle_microseconds where a config is silent.
const sequenceIdle = time.Second

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
	b, f, from := c.format()
	if f == nil {
		return c.backendFromName()
	}
	if cfg.Backend == "" {
		cfg.Backend = b.GetName()
		c.notef("backend %q, from %s", cfg.Backend, from)
	}
	if cfg.Platform == "" && f.GetPlatform() != "" {
		cfg.Platform = f.GetPlatform()
		c.notef("platform %q, from %s", cfg.Platform, from)
	}
	if cfg.DefaultModelFilename == "" && f.GetFilename() != "" {
		cfg.DefaultModelFilename = f.GetFilename()
		c.notef("default_model_filename %q, from %s", cfg.DefaultModelFilename, from)
	}
	return nil
}

// format finds the kind of model that the config names, or where it names nothing the
// folder's files.
func (c *completion) format() (b *worker.Backend, f *worker.ModelFormat, from string) {
	cfg := c.cfg
	for _, b := range c.opts.Known {
		if cfg.Backend != "" && cfg.Backend != b.GetName() {
			continue
		}
		for _, f := range b.GetFormats() {
			name := f.GetFilename()
			switch {
			case cfg.Platform != "" && cfg.Platform != f.GetPlatform():
			case cfg.Platform != "":
				return b, f, fmt.Sprintf("platform %q", cfg.Platform)
			case cfg.Backend != "" && (cfg.DefaultModelFilename == name || len(b.GetFormats()) == 1):
				return b, f, fmt.Sprintf("backend %q", cfg.Backend)
			case cfg.DefaultModelFilename == name && name != "":
				return b, f, "default_model_filename"
			case cfg.DefaultModelFilename == "" && c.holds(f):
				return b, f, fmt.Sprintf("the file %s", name)
			}
		}
		if cfg.Backend == "" || cfg.Platform != "" {
			continue
		}
		for _, f := range b.GetFormats() {
			if f.GetDefault() {
				return b, f, fmt.Sprintf("backend %q", cfg.Backend)
			}
		}
	}
	return nil, nil, ""
}

func (c *completion) holds(f *worker.ModelFormat) bool {
	for _, file := range c.opts.Files {
		if file.Name == f.GetFilename() {
			return f.GetKind() == worker.ModelFormat_ANY || file.Dir == (f.GetKind() == worker.ModelFormat_FOLDER)
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
// Source: Triton's instance group normalisation; the kinds that a backend prefers and
// their counts are its own word.
func (c *completion) fillInstanceGroups() {
	cfg := c.cfg
	if cfg.GetEnsembleScheduling() != nil {
		return
	}
	gpus := c.opts.GPUs
	if !c.opts.Backends[cfg.Backend].GetGpu() {
		gpus = nil
	}
	places := c.opts.backend(cfg.Backend).GetPlacements()
	silent := len(cfg.InstanceGroup) == 0
	if silent {
		cfg.InstanceGroup = []*modelconfig.ModelInstanceGroup{{Name: cfg.Name, Kind: preferred(places, len(gpus) > 0)}}
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
		if g.Count == 0 {
			g.Count = 1
			if at := slices.IndexFunc(places, func(p *worker.Placement) bool { return kindOf(p) == g.Kind }); at >= 0 {
				g.Count = int32(min(max(places[at].GetCount(), 1), maxInstances))
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

// preferred is the first kind of instances that a backend names and that can be had here;
// KIND_AUTO where it names none.
func preferred(places []*worker.Placement, gpus bool) modelconfig.ModelInstanceGroup_Kind {
	for _, p := range places {
		if p.GetKind() != worker.Placement_GPU || gpus {
			return kindOf(p)
		}
	}
	return modelconfig.ModelInstanceGroup_KIND_AUTO
}

// kindOf is a backend's kind of instances as configs have it; KIND_AUTO for an unknown one.
func kindOf(p *worker.Placement) modelconfig.ModelInstanceGroup_Kind {
	switch p.GetKind() {
	case worker.Placement_CPU:
		return modelconfig.ModelInstanceGroup_KIND_CPU
	case worker.Placement_GPU:
		return modelconfig.ModelInstanceGroup_KIND_GPU
	case worker.Placement_MODEL:
		return modelconfig.ModelInstanceGroup_KIND_MODEL
	}
	return modelconfig.ModelInstanceGroup_KIND_AUTO
}
