//go:build onnxruntime && cgo

package onnxruntime

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
	"github.com/sluice-serve/sluice/workers/internal/watch"
)

// The libraries that the execution providers lie in, beside ONNX Runtime's own.
const (
	cudaLibrary     = "libonnxruntime_providers_cuda.so"
	tensorrtLibrary = "libonnxruntime_providers_tensorrt.so"
)

// New makes the factory of the backend over the shared library at path; a path without
// a slash is searched for as the dynamic linker does. A library that can't be loaded is
// no error of the factory: the backend says so in Info and refuses every model with it.
// ONNX Runtime's log lines go to the default logger of log/slog.
func New(path string) backend.Factory {
	return func(set map[string]string) (backend.Backend, error) {
		o, err := parseOptions(set)
		if err != nil {
			return nil, err
		}
		return newRuntime(path, o), nil
	}
}

// runtime is ONNX Runtime as a backend.Backend. It owns the library and the watch,
// until Close.
type runtime struct {
	lib     *ort.Library
	watch   *watch.Watch
	options options
	dir     string // of the shared library
	info    backend.Info
	log     *slog.Logger
}

func newRuntime(path string, o options) *runtime {
	r := &runtime{options: o, log: slog.Default(), info: about(path)}
	if filepath.Base(path) != path {
		r.dir = filepath.Dir(resolved(path))
	}
	if path == "" {
		r.info.Unavailable = "no shared library of ONNX Runtime is given"
		return r
	}
	lib, err := ort.Open(path, ort.Config{Log: r.log, GlobalThreads: o.global, Intra: o.intra, Inter: o.inter})
	if err != nil {
		r.info.Unavailable = "ONNX Runtime's library can't be used: " + cleaner{library: r.dir}.clean(err.Error())
		return r
	}
	r.lib, r.info.Version = lib, lib.Version()
	if providers, err := lib.Providers(); err != nil {
		r.log.Warn("ONNX Runtime does not tell its execution providers", "error", err)
	} else {
		r.info.GPU = slices.Contains(providers, "CUDAExecutionProvider") && r.hasLibrary(cudaLibrary)
	}
	r.watch = watch.New()
	return r
}

func (r *runtime) Info() backend.Info { return r.info }

// Close frees the library and ends the backend's goroutines.
func (r *runtime) Close() error {
	if r.lib == nil {
		return nil
	}
	r.watch.Close()
	return r.lib.Close()
}

func (r *runtime) hasLibrary(name string) bool {
	_, err := os.Stat(filepath.Join(r.dir, name))
	return err == nil
}

// Describe opens the model file without optimising it.
func (r *runtime) Describe(ctx context.Context, spec backend.Spec) (*backend.Description, error) {
	path, err := r.modelPath(spec)
	if err != nil {
		return nil, err
	}
	libraries, err := r.options.files(spec).operators(spec.Config.GetModelOperations().GetOpLibraryFilename())
	if err != nil {
		return nil, infer.Errorf(infer.CodeOf(err), "unable to load model '%s': %w", spec.Name, err)
	}
	s, err := r.lib.NewSession(ctx, path, ort.SessionConfig{Graph: ort.GraphOff, Intra: 1, Inter: 1, Libraries: libraries})
	if err != nil {
		return nil, r.cleaner(spec).load(spec.Name, err)
	}
	defer s.Close()
	if err := checkTypes(spec.Name, s); err != nil {
		return nil, err
	}
	return &backend.Description{Inputs: describe(s.Inputs), Outputs: describe(s.Outputs)}, nil
}

func describe(infos []ort.TensorInfo) []backend.TensorInfo {
	all := make([]backend.TensorInfo, len(infos))
	for i, t := range infos {
		all[i] = backend.TensorInfo{Name: t.Name, Datatype: datatypeOf(t.Type), Shape: t.Shape, Optional: t.Optional}
	}
	return all
}

// Load opens a session for the CPU and checks it against the configuration; models
// that are for GPUs alone are opened and checked by their instances.
func (r *runtime) Load(ctx context.Context, spec backend.Spec) (backend.Model, error) {
	path, err := r.modelPath(spec)
	if err != nil {
		return nil, err
	}
	set, err := newSettings(spec, r.options, r.log)
	if err != nil {
		return nil, infer.Errorf(infer.CodeOf(err), "unable to load model '%s': %w", spec.Name, err)
	}
	m := &model{runtime: r, spec: spec, path: path, settings: set}
	if onlyGPU(spec.Config) {
		return m, nil
	}
	if len(spec.Config.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator()) > 0 {
		r.log.Warn("gpu_execution_accelerator has no effect on instances on the CPU", "model", spec.Name)
	}
	if m.first, err = m.open(ctx, set.session); err != nil {
		return nil, err
	}
	return m, nil
}

func (r *runtime) cleaner(spec backend.Spec) cleaner {
	return cleaner{library: r.dir, model: spec.ModelDir}
}

// modelPath is the model's file; in a folder it is the folder's model.onnx.
func (r *runtime) modelPath(spec backend.Spec) (string, error) {
	if r.lib == nil {
		return "", infer.Errorf(infer.Unavailable, "unable to load model '%s': %s", spec.Name, r.info.Unavailable)
	}
	path := spec.ModelFile
	st, err := os.Stat(path)
	if err == nil && st.IsDir() {
		path = filepath.Join(path, "model.onnx")
		_, err = os.Stat(path)
	}
	shown := path
	if rel, relErr := filepath.Rel(spec.ModelDir, path); relErr == nil && filepath.IsLocal(rel) {
		shown = rel
	} else {
		shown = filepath.Base(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", infer.Errorf(infer.Unavailable, "unable to find '%s' for model instance '%s'", shown, spec.Name)
	case err != nil:
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", infer.Errorf(infer.Unavailable, "unable to read '%s' for model instance '%s': %w", shown, spec.Name, err)
	}
	return path, nil
}
