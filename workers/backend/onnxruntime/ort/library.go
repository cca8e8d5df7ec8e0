//go:build onnxruntime && cgo

package ort

/*
#cgo linux LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// Error is a failure of ONNX Runtime or of this layer.
// Source: OrtErrorCode, onnxruntime_error_code.h.
type Error struct {
	Code    int    // OrtErrorCode; negative for this layer's own
	Message string // as ONNX Runtime wrote it: it may name paths and source files
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Codes that callers tell apart.
const (
	CodeInvalidArgument = int(C.ORT_INVALID_ARGUMENT)
	CodeNoSuchFile      = int(C.ORT_NO_SUCHFILE)
	CodeLoadCanceled    = int(C.ORT_MODEL_LOAD_CANCELED)
	CodeLibrary         = int(C.SL_ERR_LIBRARY)
	CodeString          = int(C.SL_ERR_STRING)
)

func failure(e *C.sl_error) error {
	return &Error{Code: int(e.code), Message: C.GoString(&e.text[0])}
}

// Config is what holds for the whole library.
type Config struct {
	Log *slog.Logger // takes ONNX Runtime's log lines; nil drops them
	// GlobalThreads makes one pool for all sessions, of Intra and Inter threads.
	GlobalThreads bool
	Intra, Inter  int
}

// Library is ONNX Runtime, opened, with the process's one environment.
type Library struct {
	c       *C.sl_lib
	global  bool
	logRead *os.File
	logEnd  int           // what ONNX Runtime's logger writes to; never blocks
	logged  chan struct{} // closed when the reader of log lines has ended
}

// Open loads the shared library at path and starts the goroutine that reads its log,
// until Close. A library older than 1.17, or none, is an Error with CodeLibrary.
func Open(path string, cfg Config) (*Library, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe for the log of ONNX Runtime: %w", err)
	}
	l := &Library{logRead: os.NewFile(uintptr(fds[0]), "log of ONNX Runtime"), logEnd: fds[1], global: cfg.GlobalThreads,
		logged: make(chan struct{})}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	go l.readLog(log)
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var e C.sl_error
	global := C.int(0)
	if cfg.GlobalThreads {
		global = 1
	}
	if C.sl_open(cpath, C.int(l.logEnd), global, C.int(cfg.Intra), C.int(cfg.Inter), &l.c, &e) != 0 {
		return nil, errors.Join(failure(&e), l.closeLog())
	}
	return l, nil
}

// Close releases the environment. No session is left.
func (l *Library) Close() error {
	C.sl_close(l.c, C.int(l.logEnd))
	l.c = nil
	return l.closeLog()
}

func (l *Library) closeLog() error {
	err := syscall.Close(l.logEnd)
	<-l.logged
	return errors.Join(err, l.logRead.Close())
}

// readLog hands lines of the form "<severity><text>\0" to log until the pipe ends.
func (l *Library) readLog(log *slog.Logger) {
	defer close(l.logged)
	buf := make([]byte, 0, 8192)
	for {
		n, err := l.logRead.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		rest := buf
		for {
			line, after, ok := bytes.Cut(rest, []byte{0})
			if !ok {
				break
			}
			logLine(log, string(line))
			rest = after
		}
		buf = buf[:copy(buf, rest)]
		if err != nil {
			if !errors.Is(err, io.EOF) {
				log.Error("reading the log of ONNX Runtime", "error", err)
			}
			return
		}
		if len(buf) == cap(buf) {
			buf = buf[:0]
		}
	}
}

// logLine maps OrtLoggingLevel (0 verbose, 1 info, 2 warning, 3 error, 4 fatal). What
// is an error to ONNX Runtime comes back as an error too, so it is a warning here.
func logLine(log *slog.Logger, line string) {
	if line == "" {
		return
	}
	write := log.Debug
	if line[0] >= '2' {
		write = log.Warn
	}
	write("ONNX Runtime: " + line[1:])
}

// Version is the library's, "1.31.1".
func (l *Library) Version() string { return C.GoString(l.c.version) }

// API is the version of the C API in use.
func (l *Library) API() int { return int(l.c.api_version) }

// Providers are the execution providers that this build of the library knows; their
// own libraries may still be missing.
func (l *Library) Providers() ([]string, error) {
	var names **C.char
	var n C.int
	var e C.sl_error
	if C.sl_providers(l.c, &names, &n, &e) != 0 {
		return nil, failure(&e)
	}
	defer C.sl_release_providers(l.c, names, n)
	var all []string
	for _, p := range unsafe.Slice(names, int(n)) {
		all = append(all, C.GoString(p))
	}
	return all, nil
}

// Type is the element type of a tensor.
// Source: ONNXTensorElementDataType, onnxruntime_c_api.h.
type Type int32

// The element types that the v2 protocol has a datatype for.
const (
	Float    Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
	Uint8    Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8
	Int8     Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8
	Uint16   Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16
	Int16    Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16
	Int32    Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32
	Int64    Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
	String   Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING
	Bool     Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL
	Float16  Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16
	Double   Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE
	Uint32   Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32
	Uint64   Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64
	BFloat16 Type = C.ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16
)

// String is the type's name in the header without its prefix, or its number.
func (t Type) String() string {
	names := [...]string{"UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL",
		"FLOAT16", "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ",
		"FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4"}
	if t >= 0 && int(t) < len(names) {
		return names[t]
	}
	return strconv.Itoa(int(t))
}
