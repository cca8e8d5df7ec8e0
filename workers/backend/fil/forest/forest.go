//go:build cgo

package forest

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE
#cgo linux LDFLAGS: -ldl -lm
#include "forest.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Forest is a model. Its memory is mapped until Close; any number of goroutines may evaluate it before.
type Forest struct {
	// Task is what it was trained for.
	Task Task
	// Features is how many values a row has.
	Features int
	// Targets and Classes are the dimensions of a row's sums. Classes is 1 for a binary classifier and for a regressor; of
	// several targets it is that of the one with the most.
	Targets, Classes int
	// Wide says that it computes in double; else in float.
	Wide bool
	// Trees and Nodes are how many there are.
	Trees, Nodes int

	block []byte
	c     C.sl_forest
}

// Load reads a file. Its error says what is wrong with it, in treelite's words or in ours; when ctx ends it is ctx's.
func Load(ctx context.Context, s Source) (*Forest, error) {
	fd, err := unix.MemfdCreate("sluice-forest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory for a forest: %w", err)
	}
	file := os.NewFile(uintptr(fd), "forest")
	defer func() { _ = file.Close() }()
	if err := s.read(ctx, file); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, fmt.Errorf("sealing a forest's memory: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f := &Forest{}
	// A private mapping: one that is shared can't be made writable, nor C's pointers be const all the way.
	f.block, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping a forest of %d bytes: %w", info.Size(), err)
	}
	var text [C.SL_TEXT]C.char
	if C.sl_forest_check(unsafe.Pointer(&f.block[0]), C.size_t(len(f.block)), &f.c, &text[0]) != 0 {
		return nil, errors.Join(errors.New(C.GoString(&text[0])), f.Close())
	}
	h := f.c.head
	f.Task, f.Features, f.Targets, f.Classes = Task(h.task), int(h.features), int(h.targets), int(h.classes)
	f.Wide, f.Trees, f.Nodes = h.wide != 0, int(h.trees), int(h.nodes)
	return f, nil
}

// Close frees the memory. Nobody evaluates it any more.
func (f *Forest) Close() error { return unix.Munmap(f.block) }

// Size is how many bytes of memory it has.
func (f *Forest) Size() int { return len(f.block) }

// Predict evaluates rows of float, or of double where the forest is wide: Features values each, one row behind the other. out
// takes Targets x Classes values of the same type for each row. Both are aligned to their type, and neither is kept.
func (f *Forest) Predict(in, out []byte, rows int) {
	size := 4
	if f.Wide {
		size = 8
	}
	if len(in) < rows*f.Features*size || len(out) < rows*f.Targets*f.Classes*size {
		panic("forest: rows without their memory")
	}
	if rows == 0 {
		return
	}
	to := unsafe.Pointer(unsafe.SliceData(out))
	C.sl_forest_sum(&f.c, unsafe.Pointer(unsafe.SliceData(in)), C.uint64_t(rows), to)
	C.sl_forest_post(&f.c, C.uint64_t(rows), to)
}

// write reads a file and writes its forest to a descriptor.
func write(library string, format Format, path, config string, fd int) error {
	var text [C.SL_TEXT]C.char
	l, p, c := C.CString(library), C.CString(path), C.CString(config) // the process ends soon
	if C.sl_forest_write(l, C.int(format), p, c, C.int(fd), &text[0]) != 0 {
		return errors.New(C.GoString(&text[0]))
	}
	return nil
}
