package cuda

import "github.com/sluice-serve/sluice/infer"

// The driver's numbers that a client can do something about.
// Source: CUresult, cuda.h.
const (
	invalidValue   = 1
	outOfMemory    = 2
	invalidContext = 201
	mapFailed      = 205
	alreadyMapped  = 208
	invalidHandle  = 400
)

// failure is an error of the driver: its number, -1 where it isn't the driver's, and a
// text.
type failure struct {
	code int
	text string
}

// opening is the error of a handle that can't be opened.
// Source: OpenCudaIPCRegion of the original has the words before the colon.
func (f *failure) opening() error {
	const words = "failed to open CUDA IPC handle: %s%s"
	switch f.code {
	case invalidValue, invalidHandle, mapFailed:
		return infer.Errorf(infer.InvalidArg, words, f.text, "; the process that exported it may have ended or freed the memory")
	case invalidContext, alreadyMapped:
		return infer.Errorf(infer.InvalidArg, words, f.text, "; a process can't open a handle of its own memory")
	}
	return infer.Errorf(infer.Internal, words, f.text, "")
}

func (f *failure) moving() error {
	return infer.Errorf(infer.Internal, "CUDA memory: %s", f.text)
}

// taking is the error of an allocation.
func (f *failure) taking(n int64) error {
	if f.code == outOfMemory {
		return infer.Refusef(infer.Unavailable, infer.ReasonMemory, "the device has no %d bytes: %s", n, f.text)
	}
	return f.moving()
}
