package infer

import (
	"context"
	"os"
)

// Place is where a tensor lies in a client's shared memory, or in device memory of a worker, where
// it is resident. The gateway knows the place and never maps the memory: workers read and write it. The
// zero Place is none.
type Place struct {
	Region uint32 // the region's slot (Region.Slot), or above MaxRegions that of a resident tensor; 0: no place
	Offset int64  // from the start of the region's registered range, in bytes
	Size   int64  // bytes that are there for the tensor
}

// IsZero says that there is no place.
func (p Place) IsZero() bool { return p.Region == 0 }

// IsResident says that the place is device memory of a worker: that of an output which lies where
// it was made (RequestedOutput.Resident). It is read-only, and valid as long as its answer's Memory.
func (p Place) IsResident() bool { return p.Region > MaxRegions }

// MaxRegions is how many slots of regions there are; slots count from 1.
const MaxRegions = 1 << 16

// AnswerRegions is how many of the slots, the last ones, are for the memory that workers answer into;
// clients' regions have the others.
const AnswerRegions = 1 << 12

// MaxRegionSize bounds a region's range, in bytes.
const MaxRegionSize = int64(1) << 40

// Region is a range of a client's memory that workers of this host map. Its fields are
// checked before workers hear of it and do not change.
type Region struct {
	Slot   uint32 // chosen by the registry; given to another region once this one is closed
	Name   string // the client's name of it, for error texts
	Offset int64  // of the range in the memory, in bytes
	Size   int64  // of the range, in bytes

	// File is what a key or a passed descriptor stands for; nil for a CUDA region. It
	// stays open until CloseRegion has returned, and it is the registry's.
	File *os.File
	// CUDA is device memory of another process; nil for a system region.
	CUDA *CUDAHandle
}

// CUDAHandle names device memory of another process.
// Source: cudaIpcMemHandle_t of the CUDA runtime.
type CUDAHandle struct {
	Raw    [64]byte
	Device int // CUDA ordinal on this host
}

// Regions is what workers do with clients' memory; workers/client fits it.
type Regions interface {
	// OpenRegion makes every local worker that can have it map the region; it returns
	// when batches may name it. A worker that starts later maps it before it executes
	// anything. Errors: InvalidArg where the memory is not what was said, Unsupported
	// where no worker of this host can open it.
	OpenRegion(ctx context.Context, r *Region) error
	// CloseRegion makes the workers forget a slot. No batch that names it may be in
	// flight. It ends when every worker that lives has unmapped it.
	CloseRegion(ctx context.Context, slot uint32) error
	// ReadPlace copies from a region to fresh memory, for what can't be executed where
	// it lies. The caller owns a reference of the buffer.
	ReadPlace(ctx context.Context, p Place) (*Buffer, error)
	// WritePlace copies data to the start of a place that is large enough for it.
	WritePlace(ctx context.Context, p Place, data []byte) error
}

// ErrNoRegions is the error of whoever has no Regions.
func ErrNoRegions() error { return Errorf(Unsupported, "shared memory is not supported") }
