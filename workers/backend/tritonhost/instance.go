//go:build cgo

package tritonhost

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// instance is an instance of a model in its backend.
type instance struct {
	model *model
	c     *C.TRITONBACKEND_ModelInstance

	mu      sync.Mutex
	tag     uintptr              // guarded by mu
	running map[uintptr]*running // guarded by mu: batches that were kept
	pumping sync.WaitGroup
	pumps   bool // guarded by mu
	wanted  []C.uint8_t
}

// running is a batch in the backend.
type running struct {
	c        *C.th_batch
	requests []backend.Request
	done     []bool // by request: it has its final answer, or failed
	ended    []bool // by request: the backend is through with it
	left     int    // requests that have not ended
	slab     []byte // memory of the response arena for outputs
	to       answers
	batch    backend.Batch // nil where it was kept: what may repeat requests
}

// answers are what a batch and one that was kept have in common.
type answers interface {
	Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error
	RespondError(i int, err error) (open bool, fault error)
	Fail(i int, err error) error
}

// Fault fits backend.Instance: a backend that can't execute says so for each batch.
func (*instance) Fault() error { return nil }

// Close fits backend.Instance.
func (in *instance) Close() error {
	C.th_instance_stop(in.c)
	in.pumping.Wait()
	return errorOf(C.th_instance_free(in.c))
}

// cancelInterval is how often it is asked whether requests of a batch that executes were cancelled.
const cancelInterval = 10 * time.Millisecond

// Execute fits backend.Instance.
func (in *instance) Execute(b backend.Batch) error {
	x := &running{requests: b.Requests(), to: b, batch: b, left: len(b.Requests())}
	x.done, x.ended = make([]bool, x.left), make([]bool, x.left)
	var open backend.Open
	var err error
	if in.model.keepsAtOnce {
		if open, err = b.Keep(); err != nil {
			return err
		}
		x.to, x.requests, x.batch = open, open.Requests(), nil
	} else {
		x.slab = in.slab(b)
	}
	tag := in.begin(x)
	if open != nil {
		in.keep(tag, x, open)
	} else {
		b.InputDone()
	}
	err = in.execute(x, open == nil)
	if err != nil {
		in.forget(tag, x)
		return err
	}
	if open != nil {
		return nil
	}
	b.InferDone()
	first := C.th_events(x.c)
	for e := first; e != nil; e = e.next {
		in.settle(x, e)
	}
	if first != nil {
		C.th_events_free(first)
	}
	if x.left == 0 {
		C.th_batch_free(x.c)
		runtime.KeepAlive(b)
		return nil
	}
	if open, err = b.Keep(); err != nil {
		in.abandon(tag, x)
		return err
	}
	x.to, x.requests, x.batch = open, open.Requests(), nil
	in.keep(tag, x, open)
	return nil
}

// execute has the backend execute the batch, and meanwhile tells it of cancelled requests.
func (in *instance) execute(x *running, watch bool) error {
	defer in.model.host.guard(func() string {
		return "TRITONBACKEND_ModelInstanceExecute of model '" + in.model.spec.Name + "'"
	})()
	if watch {
		stop := make(chan struct{})
		var watching sync.WaitGroup
		var late *time.Timer
		watching.Add(1)
		late = time.AfterFunc(cancelInterval, func() {
			defer watching.Done()
			in.watch(x, stop)
		})
		for i, r := range x.requests {
			if r.Cancelled() {
				C.th_cancel(x.c, C.uint32_t(i))
			}
		}
		defer func() {
			close(stop)
			if late.Stop() {
				watching.Done()
			}
			watching.Wait()
		}()
	}
	return errorOf(C.th_execute(x.c))
}

// watch looks for cancelled requests until stop is closed.
func (in *instance) watch(x *running, stop <-chan struct{}) {
	t := time.NewTicker(cancelInterval)
	defer t.Stop()
	for {
		for i, r := range x.requests {
			if r.Cancelled() {
				C.th_cancel(x.c, C.uint32_t(i))
			}
		}
		select {
		case <-stop:
			return
		case <-t.C:
		}
	}
}

// slabOverhead is what an output takes beside its bytes: what guards its end, and alignment.
const slabOverhead = 128

// slab is memory of the response arena for the outputs that can be foreseen; nil: the library takes its own.
func (in *instance) slab(b backend.Batch) []byte {
	rows := int64(max(b.Rows(), 1))
	n, in0 := int64(0), int64(0)
	inputs := b.Inputs()
	for i := range inputs {
		in0 += int64(len(inputs[i].Data))
	}
	for i := range in.model.outputs {
		out := &in.model.outputs[i]
		if n += slabOverhead * int64(len(b.Requests())); out.row >= 0 {
			n += rows * out.row
		} else {
			n += min(in0, 1<<20) // a guess
		}
	}
	mem, err := b.Alloc(n)
	if err != nil {
		return nil // who answers says so
	}
	return mem
}

// begin makes the batch for the library.
func (in *instance) begin(x *running) uintptr {
	in.mu.Lock()
	in.tag++
	tag := in.tag
	in.mu.Unlock()
	x.c = C.th_batch_new(in.c, C.uint32_t(len(x.requests)), C.uintptr_t(tag), unsafe.Pointer(unsafe.SliceData(x.slab)),
		C.uint64_t(len(x.slab)))
	for _, r := range x.requests {
		in.add(x.c, r)
	}
	return tag
}

// add puts a request into the library's batch.
func (in *instance) add(batch *C.th_batch, r backend.Request) {
	context, params := backend.ContextOf(r.Params())
	id, start, end := r.Correlation()
	flags := C.uint32_t(0)
	if start {
		flags |= C.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
	}
	if end {
		flags |= C.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
	}
	in.wanted = in.wanted[:0]
	for i := range in.model.outputs {
		w := C.uint8_t(0)
		if r.Wants(in.model.outputs[i].name) {
			w = 1
		}
		in.wanted = append(in.wanted, w)
	}
	text, correlation := cText(r.ID()), cText(id.Str)
	C.th_batch_request(batch, text.p, correlation.p, C.uint64_t(id.ID), C.uint64_t(context.Timeout/time.Microsecond), flags,
		unsafe.SliceData(in.wanted))
	runtime.KeepAlive(text.b)
	runtime.KeepAlive(correlation.b)
	inputs := r.Inputs()
	for i := range inputs {
		t := &inputs[i]
		C.th_batch_input(batch, in.model.nameOf(t.Name), typeOf(t.Datatype), C.uint32_t(len(t.Shape)),
			(*C.int64_t)(unsafe.Pointer(unsafe.SliceData(t.Shape))), C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))),
			C.uint64_t(len(t.Data)))
	}
	for i := range params {
		addParameter(batch, &params[i])
	}
}

// text is a string with a NUL behind it, in Go's memory: the library copies it.
type text struct {
	p *C.char
	b []byte
}

func cText(s string) text {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return text{(*C.char)(unsafe.Pointer(&b[0])), b}
}

func addParameter(batch *C.th_batch, p *infer.Param) {
	name, value := cText(p.Name), cText(p.Value.Str)
	kind, chars, integer := parameterOf(p)
	text := value.p
	if !chars {
		text = nil
	}
	C.th_batch_parameter(batch, name.p, kind, text, C.uint64_t(len(p.Value.Str)), integer, C.double(p.Value.Double))
	runtime.KeepAlive(name.b)
	runtime.KeepAlive(value.b)
}

// parameterOf is the type of a parameter, whether it is text, and its value as an integer.
func parameterOf(p *infer.Param) (kind C.int, text bool, integer C.int64_t) {
	switch p.Value.Kind {
	case infer.KindBool:
		if p.Value.Bool {
			integer = 1
		}
		return C.TRITONSERVER_PARAMETER_BOOL, false, integer
	case infer.KindInt64, infer.KindUint64:
		return C.TRITONSERVER_PARAMETER_INT, false, C.int64_t(p.Value.Int)
	case infer.KindDouble:
		return C.TRITONSERVER_PARAMETER_DOUBLE, false, 0
	}
	return C.TRITONSERVER_PARAMETER_STRING, true, 0
}

// typeOf is the number of a datatype, which is the same in both: that of inference.DataType but for strings' name.
func typeOf(d infer.Datatype) C.int { return C.int(d) }
