//go:build onnxruntime && cgo

package ort

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"fmt"
	"unsafe"
)

// GraphLevel says how much of the graph is optimised when a session is made.
// Source: GraphOptimizationLevel, onnxruntime_c_api.h.
type GraphLevel int

// The graph levels.
const (
	GraphOff      GraphLevel = C.ORT_DISABLE_ALL
	GraphBasic    GraphLevel = C.ORT_ENABLE_BASIC
	GraphExtended GraphLevel = C.ORT_ENABLE_EXTENDED
	GraphAll      GraphLevel = C.ORT_ENABLE_ALL
)

// SessionConfig is how a session is made. Threads are those of its own pools (1: none,
// the caller's thread computes); they are ignored with global threads.
type SessionConfig struct {
	Graph        GraphLevel
	Parallel     bool // branches of the graph run at once, on Inter threads
	Intra, Inter int
	Arena        *bool     // CPU memory arena; nil: ONNX Runtime's default
	Pattern      *bool     // memory pattern; nil: ONNX Runtime's default
	Entries      []Option  // session configuration entries
	TensorRT     *Provider // nil: none; it comes before CUDA
	CUDA         *Provider // nil: none
	Libraries    []string  // with custom operators
}

// Option is one key and its value.
type Option struct{ Key, Value string }

// Provider is an execution provider with its options by ONNX Runtime's names.
type Provider struct{ Options []Option }

// TensorInfo is what a model file declares of a tensor.
type TensorInfo struct {
	Name     string
	ONNXType int     // ONNXType; 1 is a tensor, the only one whose other fields are set
	Type     Type    // of the elements
	Rank     int     // -1: not declared
	Shape    []int64 // -1 for a dimension of any size; nil where Rank is -1
	Symbols  []string
	Optional bool // an initializer stands in for it
}

// Session is a loaded model.
type Session struct {
	Inputs  []TensorInfo // overridable initializers stand last
	Outputs []TensorInfo

	lib      *Library
	c        *C.OrtSession
	inNames  cstrings
	outNames cstrings
}

// cstrings is a C array of C strings.
type cstrings struct {
	c **C.char
	n int
}

func newCstrings(n int, at func(int) string) cstrings {
	a := (**C.char)(C.calloc(C.size_t(n+1), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	for i, s := 0, unsafe.Slice(a, n+1); i < n; i++ {
		s[i] = C.CString(at(i))
	}
	return cstrings{a, n}
}

func (s cstrings) free() {
	if s.c == nil {
		return
	}
	for _, p := range unsafe.Slice(s.c, s.n) {
		C.free(unsafe.Pointer(p))
	}
	C.free(unsafe.Pointer(s.c))
}

// NewSession loads the model file at path. Where ctx ends meanwhile, ONNX Runtime 1.22
// and later stops loading.
func (l *Library) NewSession(ctx context.Context, path string, cfg SessionConfig) (*Session, error) {
	var e C.sl_error
	var o *C.OrtSessionOptions
	if C.sl_options_new(l.c, &o, &e) != 0 {
		return nil, failure(&e)
	}
	defer C.sl_options_free(l.c, o)
	if err := l.apply(o, cfg); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		C.sl_options_cancel(l.c, o)
		close(done)
	})
	defer func() {
		if !stop() {
			<-done // the options are released behind this
		}
	}()
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	s := &Session{lib: l}
	if C.sl_session(l.c, cpath, o, &s.c, &e) != 0 {
		return nil, failure(&e)
	}
	if err := s.describe(); err != nil {
		s.Close()
		return nil, err
	}
	s.inNames = newCstrings(len(s.Inputs), func(i int) string { return s.Inputs[i].Name })
	s.outNames = newCstrings(len(s.Outputs), func(i int) string { return s.Outputs[i].Name })
	return s, nil
}

// Close frees the session; its calls are closed before.
func (s *Session) Close() {
	C.sl_session_free(s.lib.c, s.c)
	s.inNames.free()
	s.outNames.free()
	s.c = nil
}

func (l *Library) apply(o *C.OrtSessionOptions, cfg SessionConfig) error {
	type setting struct {
		what  C.int
		value int
		set   bool
	}
	flag := func(b *bool) int {
		if b != nil && *b {
			return 1
		}
		return 0
	}
	var e C.sl_error
	for _, s := range []setting{
		{C.SL_GRAPH_LEVEL, int(cfg.Graph), true},
		{C.SL_PARALLEL, flag(&cfg.Parallel), true},
		{C.SL_GLOBAL_POOL, 0, l.global},
		{C.SL_INTRA, cfg.Intra, !l.global},
		{C.SL_INTER, cfg.Inter, !l.global},
		{C.SL_ARENA, flag(cfg.Arena), cfg.Arena != nil},
		{C.SL_PATTERN, flag(cfg.Pattern), cfg.Pattern != nil},
	} {
		if s.set && C.sl_options_set(l.c, o, s.what, C.int(s.value), &e) != 0 {
			return failure(&e)
		}
	}
	for _, entry := range cfg.Entries {
		if err := l.entry(o, entry); err != nil {
			return err
		}
	}
	for _, path := range cfg.Libraries {
		cpath := C.CString(path)
		rc := C.sl_options_library(l.c, o, cpath, &e)
		C.free(unsafe.Pointer(cpath))
		if rc != 0 {
			return failure(&e)
		}
	}
	return l.providers(o, cfg)
}

func (l *Library) entry(o *C.OrtSessionOptions, entry Option) error {
	key, value := C.CString(entry.Key), C.CString(entry.Value)
	defer C.free(unsafe.Pointer(key))
	defer C.free(unsafe.Pointer(value))
	var e C.sl_error
	if C.sl_options_entry(l.c, o, key, value, &e) != 0 {
		return failure(&e)
	}
	return nil
}

func (l *Library) providers(o *C.OrtSessionOptions, cfg SessionConfig) error {
	add := func(p *Provider, appendTo func(keys, values **C.char, n C.size_t, e *C.sl_error) C.int) error {
		if p == nil {
			return nil
		}
		keys := newCstrings(len(p.Options), func(i int) string { return p.Options[i].Key })
		defer keys.free()
		values := newCstrings(len(p.Options), func(i int) string { return p.Options[i].Value })
		defer values.free()
		var e C.sl_error
		if appendTo(keys.c, values.c, C.size_t(len(p.Options)), &e) != 0 {
			return failure(&e)
		}
		return nil
	}
	if err := add(cfg.TensorRT, func(k, v **C.char, n C.size_t, e *C.sl_error) C.int {
		return C.sl_options_tensorrt(l.c, o, k, v, n, e)
	}); err != nil {
		return fmt.Errorf("TensorRT execution provider: %w", err)
	}
	if err := add(cfg.CUDA, func(k, v **C.char, n C.size_t, e *C.sl_error) C.int {
		return C.sl_options_cuda(l.c, o, k, v, n, e)
	}); err != nil {
		return fmt.Errorf("CUDA execution provider: %w", err)
	}
	return nil
}

func (s *Session) describe() error {
	inputs, err := s.infos(C.SL_INPUT)
	if err != nil {
		return err
	}
	initializers, err := s.infos(C.SL_INITIALIZER)
	if err != nil {
		return err
	}
	for i := range initializers {
		initializers[i].Optional = true
	}
	s.Inputs = append(inputs, initializers...)
	s.Outputs, err = s.infos(C.SL_OUTPUT)
	return err
}

func (s *Session) infos(kind C.int) ([]TensorInfo, error) {
	var e C.sl_error
	var n C.size_t
	if C.sl_count(s.lib.c, s.c, kind, &n, &e) != 0 {
		return nil, failure(&e)
	}
	infos := make([]TensorInfo, int(n))
	for i := range infos {
		var c C.sl_info
		rc := C.sl_describe(s.lib.c, s.c, kind, C.size_t(i), &c, &e)
		if rc == 0 {
			infos[i] = newTensorInfo(&c)
		}
		C.sl_info_free(&c)
		if rc != 0 {
			return nil, failure(&e)
		}
	}
	return infos, nil
}

func newTensorInfo(c *C.sl_info) TensorInfo {
	t := TensorInfo{Name: C.GoString(c.name), ONNXType: int(c.onnx_type), Type: Type(c._type), Rank: int(c.rank)}
	if t.ONNXType != 1 || t.Rank < 0 {
		return t
	}
	t.Shape, t.Symbols = make([]int64, t.Rank), make([]string, t.Rank)
	for i := range t.Shape {
		t.Shape[i] = max(int64(c.dims[i]), -1)
		if c.symbols[i] != nil {
			t.Symbols[i] = C.GoString(c.symbols[i])
		}
	}
	return t
}
