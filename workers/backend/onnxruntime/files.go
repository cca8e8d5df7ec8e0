//go:build onnxruntime && cgo

package onnxruntime

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// files finds the files that a model's configuration names, in the model's folder and in
// those that the backend's settings add. Who may control a model chooses its configuration;
// that must not read, write or run what lies elsewhere, nor tell whether it is there.
type files struct {
	dir       string   // the model's folder, absolute
	version   string   // the folder of the model file, absolute
	libraries []string // setting op-library-dir, absolute
	caches    []string // setting tensorrt-cache-dir, absolute
}

func (o options) files(spec backend.Spec) files {
	return files{dir: spec.ModelDir, version: filepath.Dir(spec.ModelFile), libraries: o.libraries, caches: o.caches}
}

// folders reads a setting that lists folders.
func folders(set map[string]string, key string) ([]string, error) {
	var all []string
	for dir := range strings.SplitSeq(set[key], ":") {
		if dir == "" {
			continue
		}
		if !filepath.IsAbs(dir) {
			return nil, infer.Errorf(infer.InvalidArg, "backend option '%s' of onnxruntime: '%s' is no absolute path", key, dir)
		}
		all = append(all, filepath.Clean(dir))
	}
	return all, nil
}

// local gives a name relative to dir. False: the name leads out of it by its text.
func local(dir, name string) (string, bool) {
	if strings.ContainsRune(name, 0) || name == "" {
		return "", false
	}
	if filepath.IsAbs(name) {
		rel, err := filepath.Rel(dir, name)
		return rel, err == nil && filepath.IsLocal(rel)
	}
	return name, filepath.IsLocal(name)
}

// stat looks for a name, relative to dir or below it. No symbolic link is followed out of dir.
func stat(dir, name string) (path string, info os.FileInfo, ok bool) {
	rel, ok := local(dir, name)
	if !ok {
		return "", nil, false
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", nil, false
	}
	defer root.Close()
	info, err = root.Stat(rel)
	return filepath.Join(dir, rel), info, err == nil
}

// find gives the path of a plain file in the model's folder or one of also. The error is the
// same for a file elsewhere as for one that is not there.
func (f files) find(what, name string, also []string) (string, error) {
	for _, dir := range append([]string{f.dir}, also...) {
		if path, info, ok := stat(dir, name); ok && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", f.refuse(what, name, "file", also)
}

func (f files) refuse(what, name, kind string, also []string) error {
	more := ""
	if len(also) > 0 {
		more = " or in one that the server's settings name for it"
	}
	return infer.Errorf(infer.InvalidArg, "%s: '%s' is no %s in the model's folder%s", what, clip(name), kind, more)
}

// maxShown bounds how much of a configuration's text an error repeats.
const maxShown = 256

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxShown)], "") }

// folder gives the path of a folder in the model's.
func (f files) folder(what, name string) (string, error) {
	path, info, ok := stat(f.dir, name)
	if !ok || !info.IsDir() {
		return "", f.refuse(what, name, "folder", nil)
	}
	return path, nil
}

// library gives the path of a library of operators or plugins.
func (f files) library(what, name string) (string, error) {
	return f.find(what, name, f.libraries)
}

// operators gives the paths of a model's libraries of custom operators.
// Source: message ModelOperations; Triton gives their names to the dynamic linker as they are.
func (f files) operators(names []string) ([]string, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		var err error
		if paths[i], err = f.library("op_library_filename", name); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// cache gives the path of a file or folder that ONNX Runtime may make: in the model's folder,
// or by its absolute path in one of the setting tensorrt-cache-dir. What of it exists lies
// in there.
func (f files) cache(what, name string) (string, error) {
	for i, dir := range append([]string{f.dir}, f.caches...) {
		rel, ok := local(dir, name)
		if !ok || i > 0 && !filepath.IsAbs(name) {
			continue
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue
		}
		ok = within(root, rel)
		_ = root.Close()
		if ok {
			return filepath.Join(dir, rel), nil
		}
	}
	return "", f.refuse(what, name, "path", f.caches)
}

// within says that each part of a path that exists can be reached without leaving root.
func within(root *os.Root, rel string) bool {
	for at := filepath.Clean(rel); at != "."; at = filepath.Dir(at) {
		if _, err := root.Lstat(at); err == nil {
			_, err := root.Stat(at)
			return err == nil
		}
	}
	return true
}
