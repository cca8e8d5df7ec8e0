package backend

import "github.com/sluice-serve/sluice/infer"

// Buffer is where the bytes of a tensor lie.
// Source: TRITONSERVER_BufferAttributes.
type Buffer struct {
	Kind   infer.MemoryKind
	Device int    // CUDA ordinal as this process counts; of device memory alone
	Data   []byte // host and pinned memory
	// Pointer is the address of device memory, in the device's primary context; nothing of
	// the host's may be read there.
	Pointer uint64
	Size    int64 // bytes
}

// Memory is the part of a Batch that backends need whose Info.Memory has DEVICE. An instance of
// such a backend on a GPU gets inputs that lie in its device's memory as they are there: their
// tensors have a Place and no Data, which Buffer leads to. Inputs of BYTES always have Data, and
// so have all inputs of other backends and of instances on a CPU: those are copied before.
//
// A tensor of device memory may be an output wherever one with Data may, as it is or a part of it
// (its Place with another Offset and Size), but for BYTES. What a backend has begun on the device has ended before it
// answers with it. The memory stays until the batch has ended.
type Memory interface {
	// Buffer is where the bytes of an input, or of a tensor from AllocIn, lie. The zero Buffer: t is neither.
	Buffer(t *infer.Tensor) Buffer
	// AllocIn is AllocOutput for the data of t, whose Name is an output's, in memory of a kind where
	// there is such, and else of another: Buffer tells. It sets Data or Place of t, and nothing
	// else. Where a client wants the output in memory of the same device, it may be that.
	// Source: TRITONBACKEND_OutputBuffer, whose memory type is in and out.
	AllocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error
	// Copy copies between buffers of one size, of any kind, and returns when the copy is there. An error is the device's.
	Copy(to, from Buffer) error
}
