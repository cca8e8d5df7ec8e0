package infer

// MemoryKind is a kind of memory that a tensor lies in. The numbers are those of enum MemoryKind,
// proto/worker/worker.proto, and of TRITONSERVER_MemoryType.
type MemoryKind uint8

// The kinds.
const (
	HostMemory   MemoryKind = iota // ordinary memory; TRITONSERVER_MEMORY_CPU
	PinnedMemory                   // page-locked memory of the host, which a GPU reads and writes by itself; CPU_PINNED
	DeviceMemory                   // memory of a GPU, which the host can't read; GPU
)

// String is Triton's name of the kind.
// Source: TRITONSERVER_MemoryTypeString.
func (k MemoryKind) String() string {
	switch k {
	case PinnedMemory:
		return "CPU_PINNED"
	case DeviceMemory:
		return "GPU"
	}
	return "CPU"
}
