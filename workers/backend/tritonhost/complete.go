//go:build cgo

package tritonhost

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"sync"
	"unsafe"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
)

// completions are the models whose backends may complete their config now, by a number that C code may hold.
var completions = registry{all: map[uintptr]*completion{}}

// completion is what a backend has said of a config.
type completion struct {
	had, said *modelconfig.ModelConfig // said: nil: nothing
}

type registry struct {
	mu   sync.Mutex
	last uintptr                 // guarded by mu
	all  map[uintptr]*completion // guarded by mu
	of   map[*model]uintptr      // guarded by mu
}

func (r *registry) put(m *model) uintptr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[*model]uintptr{}
	}
	r.last++
	r.all[r.last] = &completion{had: m.spec.Config}
	r.of[m] = r.last
	return r.last
}

func (r *registry) get(owner uintptr) *completion {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[owner]
}

// take is what was said of a model's config, which is forgotten.
func (r *registry) take(m *model) *completion {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner := r.of[m]
	c := r.all[owner]
	delete(r.all, owner)
	delete(r.of, m)
	return c
}

func (r *registry) drop(owner uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, owner)
	for m, o := range r.of {
		if o == owner {
			delete(r.of, m)
		}
	}
}

// sluiceSetConfig is TRITONBACKEND_ModelSetConfig, called on the thread that initializes the model: *merged is the config
// as the backend reads it from now on.
//
//export sluiceSetConfig
func sluiceSetConfig(owner C.uintptr_t, json *C.char, size C.size_t, merged **C.char) *C.TRITONSERVER_Error {
	fail := func(err error) *C.TRITONSERVER_Error {
		code := C.int(C.TRITONSERVER_ERROR_INTERNAL)
		if infer.CodeOf(err) == infer.InvalidArg {
			code = C.TRITONSERVER_ERROR_INVALID_ARG
		}
		text := C.CString(err.Error())
		defer C.free(unsafe.Pointer(text))
		return C.th_error_new(code, text)
	}
	c := completions.get(uintptr(owner))
	if c == nil {
		return fail(infer.Errorf(infer.InvalidArg, "the config can be set while the model is initialized alone"))
	}
	said := &modelconfig.ModelConfig{}
	options := protojson.UnmarshalOptions{DiscardUnknown: true}
	if err := options.Unmarshal([]byte(C.GoStringN(json, C.int(size))), said); err != nil {
		return fail(infer.Errorf(infer.InvalidArg, "the config that the backend sets can't be read: %w", err))
	}
	c.said = merge(c.had, c.said, said)
	*merged = C.CString(string(configjson.Of(c.said)))
	return nil
}

// merge is a config with what a backend has set: tensors, max_batch_size, a scheduler where there was none, and the
// transaction policy. Source: TritonModel::SetModelConfig of Triton's core.
func merge(had, before, said *modelconfig.ModelConfig) *modelconfig.ModelConfig {
	if before == nil {
		before = had
	}
	c := proto.CloneOf(before)
	c.Input, c.Output, c.MaxBatchSize = said.GetInput(), said.GetOutput(), said.GetMaxBatchSize()
	if c.GetSchedulingChoice() == nil {
		c.SchedulingChoice = said.GetSchedulingChoice()
	}
	if p := said.GetModelTransactionPolicy(); p != nil {
		c.ModelTransactionPolicy = p
	}
	return c
}

// Describe fits backend.Backend: it initializes the model, which completes its config, and ends it.
func (h *host) Describe(_ context.Context, spec backend.Spec) (*backend.Description, error) {
	if spec.Inspect {
		return nil, infer.Errorf(infer.Unsupported, "what a backend's library says of a model is not known before it runs")
	}
	m, err := h.newModel(spec, true)
	if err != nil {
		return nil, err
	}
	c := completions.take(m)
	if err := m.Close(); err != nil {
		return nil, hidden(err, &spec)
	}
	if c.said == nil {
		return nil, infer.Errorf(infer.Unsupported, "the backend does not complete configs")
	}
	return &backend.Description{Patch: patchOf(c.had, c.said)}, nil
}

// patchOf is what a completed config says that is new.
func patchOf(had, said *modelconfig.ModelConfig) *worker.ConfigPatch {
	p := &worker.ConfigPatch{Input: said.GetInput(), Output: said.GetOutput()}
	if said.GetMaxBatchSize() != had.GetMaxBatchSize() {
		p.MaxBatchSize = proto.Int32(said.GetMaxBatchSize())
	}
	if had.GetSchedulingChoice() == nil {
		p.DynamicBatching, p.SequenceBatching = said.GetDynamicBatching(), said.GetSequenceBatching()
	}
	if policy := said.GetModelTransactionPolicy(); policy != nil {
		p.Decoupled = proto.Bool(policy.GetDecoupled())
	}
	return p
}
