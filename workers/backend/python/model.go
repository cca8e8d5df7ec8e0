package python

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
)

// model is a loaded version.
type model struct {
	backend *python
	spec    backend.Spec
	log     *slog.Logger
	runner  string // the folder of the runner
	file    string // the model's source, absolute
	config  []byte // JSON, as the model is told
	limits  limits
	seats   seats
	warn    sync.Once // what resolve has to say was said

	decoupled   bool
	stateful    bool // its instances have states of sequences
	iterative   bool
	batches     bool // it has a batch dimension
	keepsAtOnce bool // its batches are kept before they are executed
	outputNames []string
	outputs     map[string]output
	names       map[string]string // of tensors, so that decoding makes none
	metrics     *metrics
	executing   atomic.Int64 // instances that have a process
}

// refusedInNames may not be in a model's name: Triton's Python backend starts its processes
// through a shell. Source: INVALID_CHARS of pb_utils.h.
const refusedInNames = ";|&$`<>()[]{}\\\"'*?~#!"

// newModel checks what can be checked without a process.
func (p *python) newModel(spec backend.Spec) (*model, error) {
	if strings.ContainsAny(spec.Name, refusedInNames) {
		return nil, infer.Errorf(infer.InvalidArg, "Invalid stub name: contains invalid characters")
	}
	c := spec.Config
	m := &model{backend: p, spec: spec, log: p.log.With("model", spec.Name, "version", spec.Version),
		file:      spec.ModelFile,
		decoupled: c.GetModelTransactionPolicy().GetDecoupled(), batches: c.GetMaxBatchSize() > 0,
		iterative: c.GetSequenceBatching().GetIterativeSequence(), outputs: outputsOf(c), config: configjson.Of(c), metrics: newMetrics()}
	if spec.BackendFile != "" {
		m.file = spec.BackendFile
	}
	if st, err := os.Stat(m.file); err != nil || st.IsDir() {
		return nil, infer.Errorf(infer.InvalidArg, "there is no file '%s' in the model's folder", m.relative(m.file))
	}
	m.stateful = c.GetSequenceBatching() != nil && !m.iterative
	m.keepsAtOnce = m.decoupled && !m.iterative
	m.outputNames = slices.Sorted(maps.Keys(m.outputs))
	m.names = map[string]string{}
	for _, name := range m.outputNames {
		m.names[name] = name
	}
	var err error
	if m.limits, err = m.readLimits(); err != nil {
		return nil, err
	}
	m.runner, err = p.runnerFolder()
	return m, err
}

// arenas are the memories that the model's processes see; nil: none.
func (m *model) arenas() backend.Arenas {
	if m.limits.isolate {
		return nil
	}
	return m.spec.Arenas
}

// relative is a path as clients may see it.
func (m *model) relative(path string) string {
	if rel, err := filepath.Rel(m.spec.ModelDir, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return filepath.Base(path)
}

// versionDir is the version's folder.
func (m *model) versionDir() string {
	return filepath.Join(m.spec.ModelDir, strconv.FormatInt(m.spec.Version, 10))
}

// Close fits backend.Model.
func (m *model) Close() error {
	m.seats.ending.Wait()
	return nil
}
