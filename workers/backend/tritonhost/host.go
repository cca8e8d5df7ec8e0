//go:build cgo

package tritonhost

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// host is the backend: it runs those of others.
type host struct {
	library string
	config  []byte        // JSON, as backends read it
	stall   time.Duration // longest execution; 0: any
	verbose bool
	metrics *metrics
}

// New makes a backend.Factory. library is the path of libtritonserver.so; "": there is none.
func New(library string) backend.Factory {
	return func(options map[string]string) (backend.Backend, error) {
		h := &host{library: library, config: backendConfig(options), verbose: options["log-verbose"] == "true", metrics: &theMetrics}
		if text := options["stall-seconds"]; text != "" {
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil {
				return nil, infer.Errorf(infer.InvalidArg,
					"option stall-seconds is '%s', and no number of seconds", text)
			}
			h.stall = time.Duration(n) * time.Second
		}
		return h, nil
	}
}

// Info fits backend.Backend.
func (h *host) Info() backend.Info {
	info := about()
	if info.Unavailable = "this worker has no libtritonserver.so"; h.library != "" {
		info.Unavailable = ""
		if _, err := os.Stat(h.library); err != nil {
			info.Unavailable = "this worker's libtritonserver.so can't be read"
		}
	}
	return info
}

// Close fits backend.Backend. Backends' libraries stay open until the process ends: some can't be closed.
func (h *host) Close() error { return nil }

// opened is the library, which the process opens once.
var opened struct {
	sync.Mutex
	path string // guarded by Mutex; "": not yet
}

// open opens libtritonserver.so.
func (h *host) open() error {
	opened.Lock()
	defer opened.Unlock()
	path, err := filepath.Abs(h.library)
	switch {
	case h.library == "" || err != nil:
		return infer.Errorf(infer.Unavailable, "this worker has no libtritonserver.so")
	case opened.path == path:
		return nil
	case opened.path != "":
		return infer.Errorf(infer.Internal, "another libtritonserver.so is open in this process")
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if why := C.th_open(name, C.bool(h.verbose)); why != nil {
		return infer.Errorf(infer.Unavailable, "libtritonserver.so can't be opened: %s", C.GoString(why))
	}
	opened.path = path
	return nil
}

// backendOf opens a model's backend, or finds it.
func (h *host) backendOf(spec *backend.Spec) (*C.TRITONBACKEND_Backend, error) {
	if spec.BackendFile == "" {
		return nil, infer.Errorf(infer.InvalidArg, "model '%s' names no backend whose library this worker could run", spec.Name)
	}
	if _, ok := spec.Config.GetParameters()["TRITON_BATCH_STRATEGY_PATH"]; ok {
		return nil, infer.Errorf(infer.Unsupported, "model '%s': parameter TRITON_BATCH_STRATEGY_PATH is not supported: "+
			"batches are formed by the gateway, which loads no library", spec.Name)
	}
	if err := h.open(); err != nil {
		return nil, err
	}
	texts := texts{}
	defer texts.free()
	var b *C.TRITONBACKEND_Backend
	failed := C.th_backend_open(texts.of(backendName(spec)), texts.of(spec.BackendFile), texts.of(string(h.config)), &b)
	if err := errorOf(failed); err != nil {
		return nil, infer.Errorf(infer.CodeOf(err), "model '%s': %w", spec.Name, hidden(err, spec))
	}
	return b, nil
}

func backendName(spec *backend.Spec) string {
	if name := spec.Config.GetBackend(); name != "" {
		return name
	}
	name := strings.TrimSuffix(filepath.Base(spec.BackendFile), ".so")
	return strings.TrimPrefix(name, "libtriton_")
}

// hidden is an error without the absolute path of the model's folder, which clients need not see.
func hidden(err error, spec *backend.Spec) error {
	text := err.Error()
	if spec.ModelDir == "" || !strings.Contains(text, spec.ModelDir) {
		return err
	}
	text = strings.ReplaceAll(text, spec.ModelDir+"/", "")
	return infer.Errorf(infer.CodeOf(err), "%s", strings.ReplaceAll(text, spec.ModelDir, filepath.Base(spec.ModelDir)))
}

// codes are Triton's. Source: TRITONSERVER_Error_Code.
var codes = [...]infer.Code{infer.Unknown, infer.Internal, infer.NotFound, infer.InvalidArg, infer.Unavailable, infer.Unsupported,
	infer.AlreadyExists, infer.Cancelled}

// errorOf takes an error of the library over; nil: success.
func errorOf(failed *C.TRITONSERVER_Error) error {
	if failed == nil {
		return nil
	}
	defer C.th_error_delete(failed)
	return infer.Errorf(codeOf(failed), "%s", C.GoString(C.th_error_text(failed)))
}

func codeOf(failed *C.TRITONSERVER_Error) infer.Code {
	if n := int(C.th_error_code(failed)); n >= 0 && n < len(codes) {
		return codes[n]
	}
	return infer.Internal
}

// texts are C strings that are freed together.
type texts []unsafe.Pointer

func (t *texts) of(s string) *C.char {
	c := C.CString(s)
	*t = append(*t, unsafe.Pointer(c))
	return c
}

func (t *texts) free() {
	for _, p := range *t {
		C.free(p)
	}
	*t = nil
}

// Load fits backend.Backend.
func (h *host) Load(ctx context.Context, spec backend.Spec) (backend.Model, error) {
	m, err := h.newModel(spec, false)
	if err != nil {
		return nil, err
	}
	if spec.Gateway != nil {
		h.metrics.join(ctx, spec.Gateway)
		theCalls.join(ctx, m.id, spec.Gateway)
	}
	return m, nil
}

// exit ends the process: its backend can't be trusted any more.
func exit(text string) {
	c := C.CString(text)
	C.th_last_words(c)
	os.Exit(1)
}

// guard watches an execution. done ends that.
func (h *host) guard(doing func() string) (done func()) {
	if h.stall == 0 {
		return func() {}
	}
	t := time.AfterFunc(h.stall, func() {
		exit(fmt.Sprintf("a backend hangs, its process ends: %s has taken longer than %v (stall-seconds)", doing(), h.stall))
	})
	return func() { t.Stop() }
}
