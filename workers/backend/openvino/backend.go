package openvino

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/openvino/ov"
	"github.com/sluice-serve/sluice/workers/internal/watch"
)

// New makes the factory of the backend of OpenVINO's models. Without the library nothing can be loaded, which the backend says
// in Info. The library is opened when the first model needs it.
func New(engines string) backend.Factory { return native.factory(engines) }

// NewTensorFlow makes the factory of the backend of TensorFlow's.
func NewTensorFlow(engines string) backend.Factory { return tensorflow.factory(engines) }

func (k *kind) factory(engines string) backend.Factory {
	return func(set map[string]string) (backend.Backend, error) {
		b := &openVINO{kind: k, library: libraryIn(engines), log: slog.Default()}
		b.info = k.about(b.library)
		if _, err := os.Stat(b.library); err != nil {
			b.info.Unavailable = "OpenVINO's library is not there: " + b.library
		} else {
			b.info.Version = packaged(filepath.Join(engines, Engine))
		}
		return b, nil
	}
}

// packaged is the version that the folder of the package says; "" where it does not.
func packaged(dir string) string {
	found, err := filepath.Glob(filepath.Join(dir, "openvino-*.dist-info"))
	if err != nil || len(found) != 1 {
		return ""
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(found[0]), "openvino-"), ".dist-info")
}

// openVINO is the backend. It owns the watch, once a model has needed it; the library is the process's.
type openVINO struct {
	kind    *kind
	library string
	info    backend.Info
	log     *slog.Logger

	mu    sync.Mutex
	lib   *ov.Library
	watch *watch.Watch
}

// Info fits backend.Backend.
func (b *openVINO) Info() backend.Info { return b.info }

// Close fits backend.Backend.
func (b *openVINO) Close() error {
	if b.lib != nil {
		b.watch.Close()
	}
	return nil
}

// open is the library, opened.
func (b *openVINO) open() (*ov.Library, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.info.Unavailable != "" {
		return nil, infer.Errorf(infer.Unavailable, "%s (%s)", b.info.Unavailable, b.info.Engine.Get)
	}
	if b.lib == nil {
		lib, err := ov.Open(b.library)
		if err != nil {
			return nil, infer.Errorf(infer.Unavailable, "OpenVINO's library can't be used: %w", err)
		}
		b.lib, b.watch = lib, watch.New()
	}
	return b.lib, nil
}

// Describe reads the model file.
func (b *openVINO) Describe(ctx context.Context, spec backend.Spec) (*backend.Description, error) {
	set, err := newSettings(spec, b.kind)
	if err != nil {
		return nil, unable(spec, infer.InvalidArg, err)
	}
	m, err := b.read(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	d := &backend.Description{}
	if d.Inputs, err = describe(m.Inputs); err == nil {
		d.Outputs, err = describe(m.Outputs)
	}
	if err != nil {
		return nil, unable(spec, infer.Unsupported, err)
	}
	if spec.Inspect {
		d.Remarks = set.unused
	}
	return d, nil
}

// Load reads the model file, gives its inputs the batch dimension, and compiles it.
func (b *openVINO) Load(ctx context.Context, spec backend.Spec) (backend.Model, error) {
	set, err := newSettings(spec, b.kind)
	if err != nil {
		return nil, unable(spec, infer.InvalidArg, err)
	}
	for _, text := range set.unused {
		b.log.Warn(text, "model", spec.Name)
	}
	read, err := b.read(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer read.Close()
	if err := fit(spec, read, set); err != nil {
		return nil, err
	}
	m := &model{backend: b, spec: spec, failure: cleaner(spec)}
	if m.plan, err = newPlan(spec.Config, read); err != nil {
		return nil, unable(spec, infer.Unsupported, err)
	}
	if m.compiled, err = read.Compile("CPU", set.properties); err != nil {
		return nil, unable(spec, infer.InvalidArg, m.failure(err))
	}
	if ctx.Err() != nil {
		m.compiled.Close()
		return nil, unable(spec, infer.CodeOf(context.Cause(ctx)), context.Cause(ctx))
	}
	return m, nil
}

func unable(spec backend.Spec, code infer.Code, err error) error {
	return infer.Errorf(code, "unable to load model '%s': %w", spec.Name, err)
}

// read reads a model's file or folder. OpenVINO may die of a path that is not there.
func (b *openVINO) read(ctx context.Context, spec backend.Spec) (*ov.Model, error) {
	lib, err := b.open()
	if err != nil {
		return nil, unable(spec, infer.Unavailable, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, unable(spec, infer.CodeOf(context.Cause(ctx)), context.Cause(ctx))
	}
	path := spec.ModelFile
	shown := filepath.Base(path)
	if rel, err := filepath.Rel(spec.ModelDir, path); err == nil && filepath.IsLocal(rel) {
		shown = rel
	}
	if err := whole(path); err != nil {
		return nil, infer.Errorf(infer.Unavailable, "unable to load model '%s': %s: %w", spec.Name, shown, err)
	}
	m, err := lib.Read(path, b.kind.rename)
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "unable to load model '%s': OpenVINO can't read %s: %w", spec.Name, shown, cleaner(spec)(err))
	}
	return m, nil
}

var errState = errors.New("it keeps state from one inference to the next (operation ReadValue), which callers would share")

// keepsState says that a model of OpenVINO's own format has variables, which its infer requests would keep.
func keepsState(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // it was only read
	word := []byte(`type="ReadValue"`)
	b := make([]byte, 0, 1<<20)
	for {
		n, err := f.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; bytes.Contains(b, word) {
			return true, nil
		}
		switch {
		case err == io.EOF:
			return false, nil
		case err != nil:
			return false, err
		case len(b) > len(word):
			b = b[:copy(b, b[len(b)-len(word):])]
		}
	}
}

// whole says what of a model is missing before OpenVINO reads it.
func whole(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("it is not there")
	case err != nil:
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return err
	case st.IsDir():
		for _, name := range []string{"saved_model.pb", "saved_model.pbtxt"} {
			if _, err := os.Stat(filepath.Join(path, name)); err == nil {
				return nil
			}
		}
		return errors.New("it is a folder without saved_model.pb")
	case st.Size() == 0:
		return errors.New("it is empty")
	case filepath.Ext(path) == ".xml":
		if keeps, err := keepsState(path); keeps || err != nil {
			return cmp.Or(err, errState)
		}
		bin := strings.TrimSuffix(path, ".xml") + ".bin"
		if _, err := os.Stat(bin); err != nil {
			return fmt.Errorf("its weights, %s, are not beside it", filepath.Base(bin))
		}
	}
	return nil
}
