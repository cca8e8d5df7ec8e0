//go:build onnxruntime && cgo

package onnxruntime

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

const maxMessage = 1024 // bytes of ONNX Runtime's text in an error

// cleaner takes out of ONNX Runtime's messages what no client may see: the paths of
// this machine and of the sources that the library was built from.
type cleaner struct {
	library string // folder of the shared library
	model   string // folder of the model; "" where none is known
}

var (
	// "/build/onnxruntime/core/graph/model.cc:181 onnxruntime::Model::Model(…)"
	sourceLine = regexp.MustCompile(`/?[\w./-]*\.(cc|cpp|cu|h|hpp|cuh):\d+\s+((virtual |static |const )*[\w:~<>,&* ]+\([^()]*(\([^()]*\)[^()]*)*\)( const)?(::<lambda[^>]*>)?( \[with [^\]]*\])?\s?)?`)
	absolute   = regexp.MustCompile(`(^|[\s"'(\[=:])(/[^\s"')\]:,/]+(/[^\s"')\]:,]*)+)`)
	blanks     = regexp.MustCompile(`\s+`)
)

// clean names files relative to the model's folder and shortens other paths to their
// last part. Node names such as "/encoder/layer.0/Add" stay: they begin with no folder
// of this machine.
func (c cleaner) clean(s string) string {
	for _, dir := range []string{c.model, resolved(c.model), c.library} {
		if dir != "" && dir != "/" && dir != "." {
			s = strings.ReplaceAll(s, strings.TrimSuffix(dir, "/")+"/", "")
		}
	}
	s = sourceLine.ReplaceAllString(s, "")
	s = absolute.ReplaceAllStringFunc(s, func(m string) string {
		i := strings.IndexByte(m, '/')
		top, _, _ := strings.Cut(m[i+1:], "/")
		if _, err := os.Lstat("/" + top); err != nil {
			return m
		}
		return m[:i] + filepath.Base(m[i:])
	})
	s = strings.TrimSpace(blanks.ReplaceAllString(s, " "))
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

func resolved(dir string) string {
	if dir == "" {
		return ""
	}
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// load turns a failure to make a session into an error for the model's owner.
// Source: the original answers "onnx runtime error <code>: <message>".
func (c cleaner) load(name string, err error) error {
	var e *ort.Error
	if !errors.As(err, &e) {
		return infer.Errorf(infer.Internal, "unable to load model '%s': %w", name, err)
	}
	code := infer.InvalidArg // what the file holds, or what the configuration asks for
	if e.Code < 0 || e.Code == ort.CodeLoadCanceled {
		code = infer.Internal
	}
	text := strings.Replace(err.Error(), e.Message, c.clean(e.Message), 1)
	return infer.Errorf(code, "unable to load model '%s': onnx runtime error %d: %s", name, e.Code, text)
}

// run turns a failed run into an error for the client. What ONNX Runtime calls an
// invalid argument is the request's fault, everything else the model's.
func (c cleaner) run(err error) error {
	var e *ort.Error
	if !errors.As(err, &e) {
		return infer.Errorf(infer.Internal, "onnx runtime: %w", err)
	}
	switch e.Code {
	case ort.CodeInvalidArgument:
		return infer.Errorf(infer.InvalidArg, "onnx runtime error %d: %s", e.Code, c.clean(e.Message))
	case ort.CodeString:
		return infer.Errorf(infer.InvalidArg, "BYTES input is malformed: %s", e.Message)
	}
	return infer.Errorf(infer.Internal, "onnx runtime error %d: %s", e.Code, c.clean(e.Message))
}
