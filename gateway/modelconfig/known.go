package modelconfig

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/worker"
)

// Known are backends by what they say of themselves, whether a worker has them or not.
// Their order is that in which a config that names no backend is tried against the files
// of its folder. It is read-only.
// Source: message Backend, proto/worker/worker.proto.
type Known []*worker.Backend

// Find gives the backend of that name; nil: it is not known.
func (k Known) Find(name string) *worker.Backend {
	for _, b := range k {
		if b.GetName() == name {
			return b
		}
	}
	return nil
}

// With is k with what the workers' backends say in place of what was known of them; those
// that k has not come behind, by name. A worker that says nothing of model files is taken
// to mean what was known.
func (k Known) With(workers map[string]*worker.Backend) Known {
	all := make(Known, 0, len(k)+len(workers))
	for _, b := range k {
		if w := workers[b.GetName()]; w != nil {
			b = merged(w, b)
		}
		all = append(all, b)
	}
	var more []string
	for name := range workers {
		if k.Find(name) == nil {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	for _, name := range more {
		all = append(all, workers[name])
	}
	return all
}

// merged is what a worker says of a backend, or where it says nothing of model files what
// was known of them.
func merged(said, known *worker.Backend) *worker.Backend {
	if len(said.GetFormats()) > 0 {
		return said
	}
	b := proto.CloneOf(said)
	b.Formats, b.UnbatchedOptional = known.GetFormats(), known.GetUnbatchedOptional()
	if len(b.Placements) == 0 {
		b.Placements = known.GetPlacements()
	}
	return b
}

// ReadsFiles says whether models of the backend need their model file.
func (k Known) ReadsFiles(backend string) bool { return len(k.Find(backend).GetFormats()) > 0 }

// Filenames are the names that model files have by default.
func (k Known) Filenames() []string {
	return k.formats(func(f *worker.ModelFormat) string { return f.GetFilename() })
}

// platforms are the names of platforms, that of ensembles among them.
func (k Known) platforms() []string {
	return append(k.formats(func(f *worker.ModelFormat) string { return f.GetPlatform() }), PlatformEnsemble)
}

// formats lists one thing of all formats, without "".
func (k Known) formats(of func(*worker.ModelFormat) string) []string {
	var names []string
	for _, b := range k {
		for _, f := range b.GetFormats() {
			if name := of(f); name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// formatOf is the backend's format with that platform; nil: it has none such.
func formatOf(b *worker.Backend, platform string) *worker.ModelFormat {
	for _, f := range b.GetFormats() {
		if f.GetPlatform() == platform {
			return f
		}
	}
	return nil
}
