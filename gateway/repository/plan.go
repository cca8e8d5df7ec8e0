package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// maxLabels bounds the bytes of a version's label files.
const maxLabels = 64 << 20

// maxVersions bounds the versions of a model that are loaded: each is built by itself.
const maxVersions = 1000

// Plan is what is known of a model before anything is loaded.
type Plan struct {
	Folder Folder
	// Config is completed as far as it can be without the model file.
	Config   *configpb.ModelConfig
	Source   *modelconfig.Source // nil: the folder has no config file
	Notes    []string            // what was completed, and from what
	Existing []int64             // version folders, ascending
	Versions []int64             // those that the version policy chooses, ascending
	Absent   []int64             // those that it names and that are not there

	checked bool // the config was read and is sound

	cfg *Config
	w   Workers
}

// Open reads a model's config, completes and checks it as far as that needs no model
// file, and chooses the versions. w may be nil: then what depends on workers is
// neither completed nor checked. An error's faults are in its chain
// (modelconfig.FaultsOf); the plan is returned with it, as far as it got.
func Open(f Folder, cfg *Config, w Workers) (*Plan, error) {
	p := &Plan{Folder: f, cfg: cfg, w: w}
	if len(f.Also) > 0 {
		return p, infer.Errorf(infer.InvalidArg, "%w", errDuplicate)
	}
	var err error
	if p.Existing, err = f.Versions(); err != nil {
		return p, err
	}
	if p.Config, p.Source, err = f.readConfig(!cfg.NoAutoComplete); err != nil {
		return p, err
	}
	opts := p.options()
	if p.Notes, err = modelconfig.CompleteBackend(p.Config, opts); err != nil {
		return p, err
	}
	p.findAnyBackend(&opts)
	notes, err := modelconfig.Complete(p.Config, nil, opts)
	p.Notes = append(p.Notes, notes...)
	if err != nil {
		return p, err
	}
	if err := p.checkEarly(opts); err != nil {
		return p, err
	}
	p.checked = true
	p.Versions, p.Absent = choose(p.Config.VersionPolicy, p.Existing)
	if len(p.Versions) == 0 {
		return p, infer.Errorf(infer.InvalidArg, "at least one version must be available under the version policy of model '%s'", f.Name)
	}
	if len(p.Versions) > maxVersions {
		return p, infer.Errorf(infer.InvalidArg, "the version policy of model '%s' chooses %d versions, the most is %d", f.Name, len(p.Versions), maxVersions)
	}
	return p, unsupported(p.Config)
}

// checkEarly validates what stands in the config before tensors are completed: their
// absence is no fault yet.
func (p *Plan) checkEarly(opts modelconfig.Options) error {
	cfg := p.Config
	if p.completes(&opts, cfg) {
		cfg = proto.CloneOf(cfg)
		cfg.Input = slices.DeleteFunc(cfg.Input, func(t *configpb.ModelInput) bool { return len(t.Dims) == 0 || t.DataType == 0 })
		cfg.Output = slices.DeleteFunc(cfg.Output, func(t *configpb.ModelOutput) bool { return len(t.Dims) == 0 || t.DataType == 0 })
		cfg.BatchInput, cfg.BatchOutput = nil, nil
		if d := cfg.GetDynamicBatching(); d != nil && cfg.MaxBatchSize == 0 {
			d.PreferredBatchSize = nil // max_batch_size may be completed
		}
		if len(cfg.Input) < len(p.Config.Input) || len(cfg.Output) < len(p.Config.Output) {
			opts.Source = nil // positions of list elements moved
		}
	}
	return p.Source.Locate(modelconfig.Validate(cfg, opts))
}

func (p *Plan) options() modelconfig.Options {
	opts := modelconfig.Options{
		Folder:              p.Folder.Name,
		Source:              p.Source,
		Tensors:             !p.cfg.NoAutoComplete,
		DefaultMaxBatchSize: p.cfg.maxBatchSize(p.Config.Backend),
	}
	if len(p.Existing) > 0 {
		opts.Files = p.Folder.files(p.Existing[0])
	}
	p.cfg.surroundings(p.w, &opts)
	return opts
}

// Known are the backends of which the plan knows something.
func (p *Plan) Known() modelconfig.Known {
	var opts modelconfig.Options
	p.cfg.surroundings(p.w, &opts)
	return opts.Known
}

// completes says whether the model file or its backend may complete the config.
func (p *Plan) completes(opts *modelconfig.Options, cfg *configpb.ModelConfig) bool {
	return !p.cfg.NoAutoComplete && (modelconfig.Incomplete(cfg) || opts.Backends[cfg.Backend].GetPatches())
}

// unsupported names what this gateway can't do yet, so that no such model is served
// in another way than its config says.
func unsupported(cfg *configpb.ModelConfig) error {
	var what []string
	add := func(yes bool, name string) {
		if yes {
			what = append(what, name)
		}
	}
	add(slices.ContainsFunc(cfg.InstanceGroup, func(g *configpb.ModelInstanceGroup) bool { return g.Passive }), "instance_group passive")
	add(slices.ContainsFunc(cfg.InstanceGroup, func(g *configpb.ModelInstanceGroup) bool { return len(g.SecondaryDevices) > 0 }),
		"instance_group secondary_devices")
	if len(what) == 0 {
		return nil
	}
	return infer.Errorf(infer.Unsupported, "model '%s': %s is not supported yet", cfg.Name, strings.Join(what, ", "))
}

// VersionPlan is one version, ready to be loaded.
type VersionPlan struct {
	namespace string

	Spec   LoadSpec
	Labels map[string][]string // output → class labels
	States map[string][]byte   // initial states, by their data_file
	Notes  []string            // what the model file completed
	// Findings are why a load would fail, and Remarks what the model is made of, as its backend
	// says where the version is verified.
	Findings, Remarks []string
	// Described says that the model file was opened for its tensors.
	Described bool

	samples []sample // of model_warmup
}

// settings are the options of a version's backend. Where that is another's native code, they have what Triton tells
// such backends beside, unless the operator says otherwise. Source: BackendConfig of Triton's core.
func (p *Plan) settings(opts *modelconfig.Options, runner string) map[string]string {
	all := p.cfg.options(p.Config.Backend, runner)
	if !opts.Backends[p.Config.Backend].GetOwnProcess() {
		return all
	}
	for name, value := range map[string]string{"auto-complete-config": strconv.FormatBool(!p.cfg.NoAutoComplete),
		"backend-directory": p.cfg.Backends.Directory, "min-compute-capability": "6.000000"} {
		if _, ok := all[name]; !ok {
			all[name] = value
		}
	}
	return all
}

// Version completes and checks one version: with what its model file declares, where
// the config leaves tensors out or verify asks for it, and with its label files.
func (p *Plan) Version(ctx context.Context, version int64, verify bool) (*VersionPlan, error) {
	cfg := proto.CloneOf(p.Config)
	opts := p.options()
	runner := p.findBackend(&opts, version)
	v := &VersionPlan{namespace: p.Folder.Namespace, Labels: map[string][]string{}, Spec: LoadSpec{
		Name: p.Folder.Name, Namespace: p.Folder.Namespace, Version: version, ModelDir: p.Folder.Dir, Config: cfg,
		Backend:     runner.Runner,
		BackendFile: runner.File,
		ModelFile:   filepath.Join(p.Folder.Dir, strconv.FormatInt(version, 10), cfg.DefaultModelFilename),
		Options:     p.settings(&opts, runner.Runner),
		Inspect:     verify,
		Ragged:      opts.Backends[cfg.Backend].GetRagged(),
	}}
	if err := p.modelFile(version, &opts); err != nil {
		return v, err
	}
	ensemble := cfg.Platform == modelconfig.PlatformEnsemble // it has no file
	if p.w != nil && !ensemble && opts.NoBackend == nil && (verify || p.completes(&opts, cfg)) {
		desc, err := p.describe(ctx, v)
		if err != nil {
			return v, err
		}
		if v.Notes, err = modelconfig.Complete(cfg, desc, opts); err != nil {
			return v, err
		}
		v.Described = desc != nil
		v.Findings, v.Remarks = desc.GetFindings(), desc.GetRemarks()
	}
	if p.w == nil && opts.Tensors && modelconfig.Incomplete(cfg) {
		return v, p.labels(v) // nobody could complete it
	}
	if err := modelconfig.Validate(cfg, opts); err != nil {
		return v, err
	}
	v.Spec.Instances = instances(cfg)
	var err error
	if v.samples, err = p.samples(v); err != nil {
		return v, err
	}
	if err := p.initialStates(v); err != nil {
		return v, err
	}
	return v, p.labels(v)
}

// modelFile checks that the model file is there, for backends known to read one.
func (p *Plan) modelFile(version int64, opts *modelconfig.Options) error {
	name := p.Config.DefaultModelFilename
	if name == "" || !opts.Known.ReadsFiles(p.Config.Backend) {
		return nil
	}
	_, err := os.Stat(filepath.Join(p.Folder.Dir, strconv.FormatInt(version, 10), name))
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // what else is wrong with it, its backend says better
	}
	var have []string
	for _, f := range p.Folder.files(version) {
		have = append(have, f.Name)
	}
	list := "is empty"
	if len(have) > 0 {
		list = "holds " + strings.Join(have[:min(len(have), 8)], ", ")
	}
	return infer.Errorf(infer.NotFound, "unable to find '%d/%s' for model '%s': the version folder %s", version, name, p.Folder.Name, list)
}

func (p *Plan) describe(ctx context.Context, v *VersionPlan) (*worker.DescribeResponse, error) {
	desc, err := p.w.Describe(ctx, &v.Spec)
	if err != nil && infer.CodeOf(err) == infer.Unsupported {
		return nil, nil
	}
	return desc, err
}

// labels reads the label files. A last line without content is none.
func (p *Plan) labels(v *VersionPlan) error {
	left := int64(maxLabels)
	for i, out := range v.Spec.Config.Output {
		if out.LabelFilename == "" {
			continue
		}
		data, err := p.Folder.Read(out.LabelFilename, left)
		if err != nil {
			fault := modelconfig.Faults{{Path: fmt.Sprintf("output[%d].label_filename", i),
				Msg: fmt.Sprintf("label file of output '%s': %s", out.Name, err)}}
			return p.Source.Locate(infer.Errorf(infer.CodeOf(err), "%w", fault))
		}
		left -= int64(len(data))
		lines := strings.Split(string(data), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		for i := range lines {
			lines[i] = strings.TrimSuffix(lines[i], "\r")
		}
		v.Labels[out.Name] = lines
	}
	return nil
}

// instances lists the instances of the groups: count on the CPU, count on each GPU.
func instances(cfg *configpb.ModelConfig) []InstanceSpec {
	var all []InstanceSpec
	for _, g := range cfg.InstanceGroup {
		for i := range g.Count {
			one := InstanceSpec{Name: fmt.Sprintf("%s_%d", g.Name, i), Profiles: g.Profile, HostPolicy: g.HostPolicy}
			if g.Kind != configpb.ModelInstanceGroup_KIND_GPU {
				all = append(all, one)
				continue
			}
			one.GPU = true
			for _, gpu := range g.Gpus {
				one.Device = int(gpu)
				if len(g.Gpus) > 1 {
					one.Name = fmt.Sprintf("%s_%d_gpu%d", g.Name, i, gpu)
				}
				all = append(all, one)
			}
		}
	}
	return all
}
