//go:build cgo

package ov

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE
#cgo linux LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

func failure(e *C.slo_error) error {
	return &Error{Code: int(e.code), Text: C.GoString(&e.text[0])}
}

// Library is OpenVINO with one core, which plugins and compiled models belong to.
type Library struct {
	core    unsafe.Pointer
	version string
}

// opened is the library, once it was opened. It stays: the signal stacks that its plugin gives to threads which use it go with the
// core, and Go's signal handlers would run on nothing.
var opened struct {
	sync.Mutex
	path string
	lib  *Library
}

// Open loads the shared library of the C API. A process has one, which every Open gives, and which stays.
func Open(path string) (*Library, error) {
	opened.Lock()
	defer opened.Unlock()
	if opened.lib != nil {
		if opened.path != path {
			return nil, fmt.Errorf("this process has loaded %s", opened.path)
		}
		return opened.lib, nil
	}
	var e C.slo_error
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	if C.slo_open(p, &e) != 0 {
		return nil, failure(&e)
	}
	l := &Library{}
	var version [64]C.char
	if C.slo_core(&l.core, &version[0], &e) != 0 {
		return nil, failure(&e)
	}
	l.version = C.GoString(&version[0])
	opened.path, opened.lib = path, l
	return l, nil
}

// Version is the library's build: "2026.4.1-…".
func (l *Library) Version() string { return l.version }

// Model is a model that was read, and may be reshaped until it is compiled.
type Model struct {
	lib             *Library
	c               unsafe.Pointer
	rename          func(string) string
	Inputs, Outputs []Port
}

// Read reads a model's file, or folder. The path must exist. rename makes the names that ports have of OpenVINO's; nil: they stay.
func (l *Library) Read(path string, rename func(string) string) (*Model, error) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	m := &Model{lib: l, rename: rename}
	var e C.slo_error
	if C.slo_read(l.core, p, &m.c, &e) != 0 {
		return nil, failure(&e)
	}
	if err := m.describe(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close frees it. What was compiled from it stays.
func (m *Model) Close() {
	C.slo_model_free(m.c)
	m.c = nil
}

// mostPorts bounds a model's inputs, and its outputs.
const mostPorts = 4096

func (m *Model) describe() error {
	var inputs, outputs C.size_t
	var e C.slo_error
	if C.slo_count(m.c, &inputs, &outputs, &e) != 0 {
		return failure(&e)
	}
	if inputs > mostPorts || outputs > mostPorts {
		return fmt.Errorf("it has %d inputs and %d outputs, at most %d are possible", inputs, outputs, mostPorts)
	}
	var err error
	if m.Inputs, err = m.ports(0, int(inputs)); err == nil {
		m.Outputs, err = m.ports(1, int(outputs))
	}
	return err
}

func (m *Model) ports(output C.int, n int) ([]Port, error) {
	all := make([]Port, n)
	for i := range all {
		var c C.slo_port
		var e C.slo_error
		if C.slo_describe(m.c, output, C.size_t(i), &c, &e) != 0 {
			return nil, failure(&e)
		}
		p := &all[i]
		if p.Type = Type(c._type); c.name != nil {
			p.Name = C.GoString(c.name)
			C.free(unsafe.Pointer(c.name))
			if m.rename != nil {
				p.Name = m.rename(p.Name)
			}
		}
		if c.rank >= 0 {
			p.Shape = make([]Range, c.rank)
			for k := range p.Shape {
				p.Shape[k] = Range{int64(c.dims[k].min), int64(c.dims[k].max)}
			}
		}
	}
	return all, nil
}

// Reshape gives inputs other shapes, by their index; the outputs follow.
func (m *Model) Reshape(shapes map[int][]Range) error {
	var indices []C.size_t
	var ports []C.slo_port
	for i, shape := range shapes {
		var p C.slo_port
		p.rank = C.int(len(shape))
		for k, r := range shape {
			p.dims[k].min, p.dims[k].max = C.int64_t(r.Min), C.int64_t(r.Max)
		}
		indices, ports = append(indices, C.size_t(i)), append(ports, p)
	}
	if len(indices) == 0 {
		return nil
	}
	var e C.slo_error
	if C.slo_reshape(m.c, &indices[0], &ports[0], C.size_t(len(indices)), &e) != 0 {
		return failure(&e)
	}
	return m.describe()
}

// Property is a setting of a compiled model: key and value.
type Property [2]string

// Compile makes a model for a device. What the properties say is OpenVINO's.
func (m *Model) Compile(device string, properties []Property) (*Compiled, error) {
	var texts []*C.char
	text := func(s string) *C.char {
		c := C.CString(s)
		texts = append(texts, c)
		return c
	}
	defer func() {
		for _, c := range texts {
			C.free(unsafe.Pointer(c))
		}
	}()
	if 2*len(properties) > 2*C.SLO_MAX_PROPERTIES {
		return nil, fmt.Errorf("%d settings, at most %d are possible", len(properties), int(C.SLO_MAX_PROPERTIES))
	}
	args := make([]*C.char, 0, 2*len(properties)+1)
	for _, p := range properties {
		args = append(args, text(p[0]), text(p[1]))
	}
	n := len(args)
	args = append(args, nil)
	c := &Compiled{}
	var e C.slo_error
	if C.slo_compile(m.lib.core, m.c, text(device), &args[0], C.size_t(n), &c.c, &e) != 0 {
		return nil, failure(&e)
	}
	return c, nil
}

// Compiled is a model that requests are made of. They share its weights.
type Compiled struct{ c unsafe.Pointer }

// Close frees it. No request is left.
func (c *Compiled) Close() {
	C.slo_compiled_free(c.c)
	c.c = nil
}
