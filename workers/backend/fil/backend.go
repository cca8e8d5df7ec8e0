package fil

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// Engine is the library's name, and that of its folder among the engines.
const Engine = "treelite"

// New makes the factory of the backend. The engine's folder is that of treelite's Python package as it is unpacked; without its
// library nothing can be loaded, which the backend says in Info. There are no options.
func New(engines string) backend.Factory {
	return func(map[string]string) (backend.Backend, error) {
		b := &trees{library: filepath.Join(engines, Engine, "treelite", "lib", "libtreelite.so"), log: slog.Default()}
		b.info = about(b.library)
		if _, err := os.Stat(b.library); err != nil {
			b.info.Unavailable = fmt.Sprintf("treelite's library is not there: %s", b.library)
			return b, nil
		}
		b.info.Version = packaged(filepath.Join(engines, Engine, "treelite"))
		return b, nil
	}
}

// packaged is the version that stands in a folder of the package; "" where it does not tell.
func packaged(dir string) string {
	v, err := os.ReadFile(filepath.Join(dir, "VERSION"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(v))
}

// trees is the backend. It holds nothing beside what models hold.
type trees struct {
	library string
	info    backend.Info
	log     *slog.Logger
}

// Info fits backend.Backend.
func (b *trees) Info() backend.Info { return b.info }

// Close fits backend.Backend.
func (b *trees) Close() error { return nil }

// Describe reads the model file, and patches the tensors that the config leaves out.
func (b *trees) Describe(ctx context.Context, spec backend.Spec) (*backend.Description, error) {
	s, f, err := b.open(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // unmapping memory that was mapped
	d := &backend.Description{Patch: patch(spec.Config, f, s)}
	if spec.Inspect {
		d.Remarks = append(d.Remarks, fmt.Sprintf("%s, %d trees of %d nodes in all, computed in %s", taskNames[f.Task], f.Trees, f.Nodes, realName(f)))
		d.Remarks = append(d.Remarks, s.unused...)
	}
	return d, nil
}

// Load reads the model file and checks it against the config.
func (b *trees) Load(ctx context.Context, spec backend.Spec) (backend.Model, error) {
	s, f, err := b.open(ctx, spec)
	if err != nil {
		return nil, err
	}
	m, err := newModel(spec.Config, f, s)
	if err != nil {
		_ = f.Close() // unmapping memory that was mapped
		return nil, infer.Errorf(infer.InvalidArg, "unable to load model '%s': %w", spec.Name, err)
	}
	for _, text := range s.unused {
		b.log.Warn(text, "model", spec.Name)
	}
	return m, nil
}

// open reads the parameters and the file.
func (b *trees) open(ctx context.Context, spec backend.Spec) (*settings, *forest.Forest, error) {
	if b.info.Unavailable != "" {
		return nil, nil, infer.Errorf(infer.Unavailable, "unable to load model '%s': %s (%s)", spec.Name, b.info.Unavailable, b.info.Engine.Get)
	}
	s, err := newSettings(spec.Config)
	if err != nil {
		return nil, nil, infer.Errorf(infer.InvalidArg, "unable to load model '%s': %w", spec.Name, err)
	}
	path, err := modelFile(spec.ModelFile, s.format)
	if err != nil {
		return nil, nil, infer.Errorf(infer.Unavailable, "unable to load model '%s': %w", spec.Name, err)
	}
	shown := filepath.Base(path)
	if rel, err := filepath.Rel(spec.ModelDir, path); err == nil && filepath.IsLocal(rel) {
		shown = rel
	}
	f, err := b.read(ctx, path, s)
	if ctx.Err() != nil {
		return nil, nil, infer.Errorf(infer.CodeOf(context.Cause(ctx)), "unable to load model '%s': %w", spec.Name, context.Cause(ctx))
	}
	if err != nil {
		return nil, nil, infer.Errorf(infer.InvalidArg, "unable to load model '%s': %s: %w", spec.Name, shown, err)
	}
	return s, f, nil
}

// read reads a file in the format that the config says, or else in the one that it seems to have.
func (b *trees) read(ctx context.Context, path string, s *settings) (*forest.Forest, error) {
	seems, ok, err := forest.Detect(path)
	if err != nil {
		return nil, plain(err)
	}
	as := s.format
	switch {
	case as == nil && ok:
		as = formatOf(seems)
	case as == nil:
		return nil, fmt.Errorf("it does not seem to be a model of trees, and parameter 'model_type' does not say (%s)", modelTypes())
	}
	f, err := forest.Load(ctx, forest.Source{Library: b.library, Format: as.format, Path: path, Unknown: s.unknown})
	switch {
	case err != nil && ok && seems != as.format:
		return nil, fmt.Errorf("it can't be read as %s, and seems to be of model_type '%s': %w", as.modelType, formatOf(seems).modelType, plain(err))
	case err != nil:
		return nil, fmt.Errorf("it can't be read as %s: %w", as.modelType, plain(err))
	}
	return f, nil
}
