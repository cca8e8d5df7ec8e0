//go:build cgo

package region

/*
#cgo CFLAGS: -O2 -Wall
#include "guard.h"
*/
import "C"

import (
	"os"
	"unsafe"
)

// guarded says that faults in mappings can be survived. It puts the handler in place.
func guarded() bool { return os.Getpagesize() == 4096 && C.sl_guard_install() == 0 }

// guard takes a mapping into the handler's table; -1: there is no room.
func guard(mem []byte) int {
	return int(C.sl_guard_add(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem))))
}

func guardBad(index int) bool { return C.sl_guard_bad(C.int(index)) != 0 }

func unguard(index int) { C.sl_guard_remove(C.int(index)) }
