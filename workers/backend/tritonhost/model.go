//go:build cgo

package tritonhost

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
)

// model is a loaded version.
type model struct {
	host     *host
	spec     backend.Spec
	c        *C.TRITONBACKEND_Model
	id       uintptr // by which the library knows it
	parallel bool    // its instances may be made at once
	making   sync.Mutex

	decoupled, iterative bool
	keepsAtOnce          bool // its batches are kept before they are executed
	batches              bool // it has a batch dimension
	outputs              []output
	states               []state
	byName               map[string]infer.Datatype // of outputs and states

	mu    sync.Mutex
	names map[string]*C.char // guarded by mu: of inputs, valid as long as the model
	texts map[*C.char]string // guarded by mu: of outputs and states, by the library's own
}

// output is an output of the config.
type output struct {
	name     string
	datatype infer.Datatype
	row      int64 // bytes of one row; -1: it depends
}

// state is an implicit state of the config.
type state struct{ input, output string }

// newModel initializes a model in its backend.
func (h *host) newModel(spec backend.Spec, complete bool) (*model, error) {
	b, err := h.backendOf(&spec)
	if err != nil {
		return nil, err
	}
	c := spec.Config
	m := &model{host: h, spec: spec, decoupled: c.GetModelTransactionPolicy().GetDecoupled(), batches: c.GetMaxBatchSize() > 0,
		iterative: c.GetSequenceBatching().GetIterativeSequence(), names: map[string]*C.char{}, byName: map[string]infer.Datatype{}}
	m.keepsAtOnce = m.decoupled && !m.iterative
	m.parallel = bool(C.th_backend_parallel(b)) || os.Getenv("TRITON_PARALLEL_INSTANCE_LOADING") == "1"
	m.readTensors()
	failed := m.initialize(b, complete)
	if err := errorOf(failed); err != nil {
		m.freeNames()
		return nil, hidden(err, &spec)
	}
	return m, nil
}

// readTensors takes outputs and states from the config.
func (m *model) readTensors() {
	for _, out := range m.spec.Config.GetOutput() {
		o := output{name: out.GetName(), datatype: infer.Datatype(out.GetDataType()), row: -1}
		dims := out.GetDims()
		if r := out.GetReshape(); r != nil {
			dims = r.GetShape()
		}
		if n, err := infer.ByteSize(o.datatype, dims); err == nil && o.datatype.Size() > 0 {
			o.row = n
		}
		m.outputs = append(m.outputs, o)
		m.byName[o.name] = o.datatype
	}
	for _, s := range m.spec.Config.GetSequenceBatching().GetState() {
		m.states = append(m.states, state{s.GetInputName(), s.GetOutputName()})
		m.byName[s.GetOutputName()] = infer.Datatype(s.GetDataType())
	}
}

// initialize calls the backend.
func (m *model) initialize(b *C.TRITONBACKEND_Backend, complete bool) *C.TRITONSERVER_Error {
	texts := texts{}
	defer texts.free()
	specs := func(n int, name func(int) (string, string)) *C.th_tensor_spec {
		if n == 0 {
			return nil
		}
		p := (*C.th_tensor_spec)(C.calloc(C.size_t(n), C.sizeof_th_tensor_spec))
		texts = append(texts, unsafe.Pointer(p))
		all := unsafe.Slice(p, n)
		for i := range all {
			own, input := name(i)
			all[i].name = texts.of(own)
			if input != "" {
				all[i].input = texts.of(input)
			}
		}
		return p
	}
	var said C.th_model_spec
	said.name, said.repository = texts.of(m.spec.Name), texts.of(m.spec.ModelDir)
	said.config = texts.of(string(configjson.Of(m.spec.Config)))
	said.version = C.uint64_t(m.spec.Version)
	said.complete, said.decoupled, said.iterative = C.bool(complete), C.bool(m.decoupled), C.bool(m.iterative)
	said.outputs = specs(len(m.outputs), func(i int) (string, string) { return m.outputs[i].name, "" })
	said.output_count = C.uint32_t(len(m.outputs))
	said.states = specs(len(m.states), func(i int) (string, string) { return m.states[i].output, m.states[i].input })
	said.state_count = C.uint32_t(len(m.states))
	owner := completions.put(m)
	m.id = owner
	said.owner = C.uintptr_t(owner)
	failed := C.th_model_new(b, &said, &m.c)
	if failed != nil {
		completions.drop(owner)
		return failed
	}
	if !complete {
		completions.drop(owner)
	}
	return nil
}

// Close fits backend.Model.
func (m *model) Close() error {
	if m.spec.Gateway != nil {
		m.host.metrics.leave(m.spec.Gateway)
	}
	err := errorOf(C.th_model_free(m.c))
	theCalls.leave(m.id)
	m.freeNames()
	return err
}

func (m *model) freeNames() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.names {
		C.free(unsafe.Pointer(c))
	}
	m.names = nil
}

// nameOf is an input's name for the library, which keeps it.
func (m *model) nameOf(name string) *C.char {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.names[name]
	if c == nil {
		c = C.CString(name)
		m.names[name] = c
	}
	return c
}

// goName is the name of an output or a state, whose text is the library's as long as the model is there.
func (m *model) goName(c *C.char) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	name, ok := m.texts[c]
	if !ok {
		if m.texts == nil {
			m.texts = map[*C.char]string{}
		}
		name = C.GoString(c)
		m.texts[c] = name
	}
	return name
}

// NewInstance fits backend.Model.
func (m *model) NewInstance(_ context.Context, spec backend.InstanceSpec) (backend.Instance, error) {
	if !m.parallel {
		m.making.Lock()
		defer m.making.Unlock()
	}
	in := &instance{model: m, running: map[uintptr]*running{}}
	texts := texts{}
	defer texts.free()
	var said C.th_instance_spec
	name := spec.Name
	if name == "" {
		name = m.spec.Name + "_0"
	}
	policy := "cpu"
	said.kind = C.TRITONSERVER_INSTANCEGROUPKIND_CPU
	if spec.GPU {
		policy, said.kind, said.device = fmt.Sprintf("gpu_%d", spec.Device), C.TRITONSERVER_INSTANCEGROUPKIND_GPU, C.int32_t(spec.Device)
	}
	said.name, said.host_policy_name = texts.of(name), texts.of(policy)
	said.host_policy = texts.of(string(configjson.AppendText([]byte{'{'}, policy)) + ":{}}")
	if n := len(spec.Profiles); n > 0 {
		p := (**C.char)(C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(uintptr(0)))))
		texts = append(texts, unsafe.Pointer(p))
		all := unsafe.Slice(p, n)
		for i := range all {
			all[i] = texts.of(spec.Profiles[i])
		}
		said.profiles, said.profile_count = p, C.uint32_t(n)
	}
	if err := errorOf(C.th_instance_new(m.c, &said, &in.c)); err != nil {
		return nil, hidden(err, &m.spec)
	}
	return in, nil
}
