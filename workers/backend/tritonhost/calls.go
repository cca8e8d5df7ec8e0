//go:build cgo

package tritonhost

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// calls makes what backends ask of the server, each on a goroutine of its own.
type calls struct {
	mu    sync.Mutex
	by    map[uintptr]backend.Gateway // guarded by mu: of loaded models, by their number
	began bool                        // guarded by mu
}

// theCalls are those of the process, as the library is.
var theCalls calls

// join adds a loaded model.
func (s *calls) join(ctx context.Context, model uintptr, g backend.Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[uintptr]backend.Gateway{}
	}
	s.by[model] = g
	if !s.began {
		s.began = true
		go s.run(context.WithoutCancel(ctx)) // until the process ends, as backends are never closed
	}
}

// leave takes one away.
func (s *calls) leave(model uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, model)
}

func (s *calls) run(ctx context.Context) {
	for {
		c := C.th_call_wait()
		go s.serve(ctx, c)
	}
}

// errNoGateway is how calls end that no loaded model makes.
var errNoGateway = infer.Errorf(infer.Unavailable, "the model that calls is not loaded, or the gateway takes no calls")

// serve makes one call.
func (s *calls) serve(ctx context.Context, c *C.th_call) {
	s.mu.Lock()
	g := s.by[uintptr(c.owner)]
	s.mu.Unlock()
	model := C.GoString(c.model)
	var err error
	ready := false
	switch {
	case c.kind == C.TH_INFER:
		call{c: c, gateway: g}.infer(ctx)
	case g == nil:
		err = errNoGateway
	case c.kind == C.TH_READY:
		ready, err = g.Ready(ctx, model, versionOf(c))
	case c.kind == C.TH_LOAD:
		var config string
		var files map[string][]byte
		if config, files, err = loadOf(c); err == nil {
			err = g.Load(ctx, model, config, files)
		}
	default:
		err = g.Unload(ctx, model, c.kind == C.TH_UNLOAD_DEPENDENTS)
	}
	code, text := C.int(-1), (*C.char)(nil)
	if err != nil {
		code, text = codeNumber(err), C.CString(err.Error())
		defer C.free(unsafe.Pointer(text))
	}
	C.th_call_end(c, code, text, C.bool(ready))
}

func versionOf(c *C.th_call) string {
	if c.version < 0 {
		return ""
	}
	return strconv.FormatInt(int64(c.version), 10)
}

// loadOf reads the parameters of a load: "config", and "file:<path>" for each file.
func loadOf(c *C.th_call) (config string, files map[string][]byte, err error) {
	for _, p := range paramsOf(unsafe.Slice(c.parameters, int(c.parameter_count))) {
		path, isFile := strings.CutPrefix(p.Name, "file:")
		switch {
		case p.Name == "config":
			config = p.Value.Str
		case isFile && files == nil:
			files = map[string][]byte{path: []byte(p.Value.Str)}
		case isFile:
			files[path] = []byte(p.Value.Str)
		default:
			return "", nil, infer.Errorf(infer.InvalidArg, "unrecognized load parameter '%s'", p.Name)
		}
	}
	return config, files, nil
}

// codeNumber is the number of an error's code. Source: TRITONSERVER_Error_Code.
func codeNumber(err error) C.int {
	code := infer.CodeOf(err)
	for n, c := range codes {
		if c == code {
			return C.int(n)
		}
	}
	switch code {
	case infer.PermissionDenied, infer.Unauthenticated:
		return C.TRITONSERVER_ERROR_INVALID_ARG
	case infer.ResourceExhausted:
		return C.TRITONSERVER_ERROR_UNAVAILABLE
	}
	return C.TRITONSERVER_ERROR_INTERNAL
}

// call is an inference that a backend asks for.
type call struct {
	c       *C.th_call
	gateway backend.Gateway
}

// callCancelInterval is how often it is asked whether a call was cancelled.
const callCancelInterval = 20 * time.Millisecond

var errCancelled = errors.New("the call was cancelled")

// infer makes it and answers it to its end.
func (x call) infer(ctx context.Context) {
	if x.gateway == nil {
		x.fail(errNoGateway)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	watching.Go(func() { x.watch(ctx, cancel) })
	final := false
	err := x.gateway.Infer(ctx, x.request(), func(a *backend.Answer) error {
		x.answer(a)
		final = final || a.Final
		return nil
	})
	cancel(nil)
	watching.Wait()
	switch {
	case final:
	case errors.Is(context.Cause(ctx), errCancelled):
		x.fail(infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled"))
	case err != nil:
		x.fail(err)
	default:
		x.answer(&backend.Answer{Final: true})
	}
}

// watch ends ctx when the backend cancels the call.
func (x call) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	t := time.NewTicker(callCancelInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if C.th_call_cancelled(x.c) {
				cancel(errCancelled)
				return
			}
		}
	}
}

// request is the call for the gateway. Its tensors' data is the backend's.
func (x call) request() *backend.Call {
	c := x.c
	r := &backend.Call{Model: C.GoString(c.model), Version: versionOf(c), ID: C.GoString(c.id), Priority: uint64(c.priority),
		Timeout:       time.Duration(min(uint64(c.timeout_us), 1<<50)) * time.Microsecond,
		Correlation:   infer.Correlation{ID: uint64(c.correlation), Str: C.GoString(c.correlation_text)},
		SequenceStart: c.flags&C.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START != 0,
		SequenceEnd:   c.flags&C.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END != 0,
		Params:        paramsOf(unsafe.Slice(c.parameters, int(c.parameter_count))), Stream: true}
	for _, name := range unsafe.Slice(c.outputs, int(c.output_count)) {
		r.Outputs = append(r.Outputs, C.GoString(name))
	}
	all := unsafe.Slice(c.inputs, int(c.input_count))
	for i := range all {
		in := &all[i]
		t := infer.Tensor{Name: C.GoString(in.name), Datatype: infer.Datatype(in.datatype)}
		for _, d := range unsafe.Slice(in.shape, int(in.rank)) {
			t.Shape = append(t.Shape, int64(d))
		}
		if in.bytes > 0 {
			t.Data = unsafe.Slice((*byte)(in.data), int(in.bytes))
		}
		r.Inputs = append(r.Inputs, t)
	}
	return r
}

// fail is the last answer: an error.
func (x call) fail(err error) {
	text := C.CString(err.Error())
	defer C.free(unsafe.Pointer(text))
	C.th_answer_send(x.c, C.th_answer_new(0, 0), codeNumber(err), text, true, false)
}

// answer hands an answer to the backend, which has copied it when it returns.
func (x call) answer(a *backend.Answer) {
	texts := texts{}
	defer texts.free()
	c := C.th_answer_new(C.uint32_t(len(a.Outputs)), C.uint32_t(len(a.Params)))
	for i := range a.Outputs {
		t := &a.Outputs[i]
		shape := (*C.int64_t)(C.calloc(C.size_t(len(t.Shape)+1), 8))
		texts = append(texts, unsafe.Pointer(shape))
		for k, d := range t.Shape {
			unsafe.Slice(shape, len(t.Shape))[k] = C.int64_t(d)
		}
		C.th_answer_output(c, texts.of(t.Name), typeOf(t.Datatype), C.uint32_t(len(t.Shape)), shape,
			C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))), C.uint64_t(len(t.Data)))
	}
	for i := range a.Params {
		p := &a.Params[i]
		kind, chars, integer := parameterOf(p)
		if chars {
			C.th_answer_parameter(c, texts.of(p.Name), kind, texts.of(p.Value.Str), C.uint64_t(len(p.Value.Str)), 0, 0)
		} else {
			C.th_answer_parameter(c, texts.of(p.Name), kind, nil, 0, integer, C.double(p.Value.Double))
		}
	}
	empty := len(a.Outputs) == 0 && len(a.Params) == 0 && a.Final
	C.th_answer_send(x.c, c, -1, nil, C.bool(a.Final), C.bool(empty))
}
