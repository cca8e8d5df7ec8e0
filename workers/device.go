package workers

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
)

// gpu is the worker's GPU as tensors of batches lie on it. It is safe for concurrent use.
type gpu struct {
	*cuda.Device
	ordinal int
	heap    *cuda.Heap
	failed  func(error) // logs what nobody can be told of
}

// driver is the CUDA driver with the worker's GPU, which is opened when it is first asked for.
// Unsupported where there is none; nil without an error where the worker is stopping.
func (w *Worker) driver() (*gpu, error) {
	w.cudaOnce.Do(func() {
		var d *cuda.Device
		if d, w.cudaErr = cuda.Open(w.config.CUDALibrary, w.config.Device.Index); w.cudaErr == nil {
			w.gpu = &gpu{Device: d, ordinal: w.config.Device.Index, heap: cuda.NewHeap(d, w.config.DeviceMemory),
				failed: func(err error) { w.log.Error("device memory could not be given back", "error", err) }}
			w.gpuOpened.Store(true)
		}
	})
	return w.gpu, w.cudaErr
}

// closeDriver is called when no instance and no connection is left.
func (w *Worker) closeDriver() error {
	w.cudaOnce.Do(func() {}) // nobody opens it any more
	if w.gpu == nil {
		return nil
	}
	err := w.gpu.heap.Close()
	w.gpu.Close()
	return err
}

// trim gives back device memory that no tensor lies in.
func (w *Worker) trim() {
	if w.gpuOpened.Load() {
		if err := w.gpu.heap.Trim(); err != nil {
			w.gpu.failed(err)
		}
	}
}

// deviceOf is the GPU whose memory an instance takes tensors in; nil: it takes them on the host.
// A backend that takes device memory does without where the driver does not open.
func (w *Worker) deviceOf(c *connection, info *backend.Info, spec *backend.InstanceSpec) *gpu {
	if !spec.GPU || !slices.Contains(info.Memory, worker.MemoryKind_DEVICE) {
		return nil
	}
	g, err := w.driver()
	if err != nil {
		w.log.Warn("tensors are handed over in host memory: the GPU's can't be used", "instance", spec.Name, "error", err)
		return nil
	}
	if g == nil {
		return nil
	}
	if c.lane != nil && c.laneOn.Load() {
		c.lane.pin(g, w)
	}
	return g
}

// memoryKinds is where all instances of a model take tensors.
func (m *model) memoryKinds() []worker.MemoryKind {
	if len(m.instances) == 0 || slices.ContainsFunc(m.instances, func(i *instance) bool { return i.gpu == nil }) {
		return nil
	}
	kinds := []worker.MemoryKind{worker.MemoryKind_HOST}
	if l := m.instances[0].connection.lane; l != nil && (l.pins.requests.Load() || l.pins.responses.Load()) {
		kinds = append(kinds, worker.MemoryKind_PINNED)
	}
	return append(kinds, worker.MemoryKind_DEVICE)
}

// pins says which of a lane's arenas are page-locked.
type pins struct {
	once                sync.Once
	requests, responses atomic.Bool
	device              *gpu // valid where one of them is
}

// pin makes the arenas page-locked for a GPU, once. Where that can't be done they are ordinary
// memory, from which copies take longer.
func (l *lane) pin(g *gpu, w *Worker) {
	l.pins.once.Do(func() {
		l.pins.device = g
		for _, a := range []struct {
			name     string
			is       *atomic.Bool
			size     int64
			view     func(off, n int64) ([]byte, error)
			readOnly bool
		}{
			{"requests", &l.pins.requests, l.Requests.Size(), l.Requests.View, true},
			{"responses", &l.pins.responses, l.Responses.Size(), l.Responses.View, false},
		} {
			mem, err := a.view(0, a.size)
			if err == nil {
				err = g.Pin(mem, a.readOnly)
			}
			if err != nil {
				w.log.Info("an arena is not page-locked", "arena", a.name, "error", err)
			}
			a.is.Store(err == nil)
		}
	})
}

// unpin is called before the arenas are unmapped.
func (l *lane) unpin() error {
	var errs []error
	for is, a := range map[*atomic.Bool]interface {
		Size() int64
		View(off, n int64) ([]byte, error)
	}{&l.pins.requests: l.Requests, &l.pins.responses: l.Responses} {
		if !is.Swap(false) {
			continue
		}
		mem, err := a.View(0, a.Size())
		if err == nil {
			err = l.pins.device.Unpin(mem)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// kindOf is the kind of memory of the host that data lies in.
func (x *execution) kindOf(data []byte) infer.MemoryKind {
	t, ok := x.inst.transport.(*mailbox)
	if !ok {
		return infer.HostMemory
	}
	l := t.lane
	if _, in := l.Requests.Offset(data); in && l.pins.requests.Load() {
		return infer.PinnedMemory
	}
	if _, in := l.Responses.Offset(data); in && l.pins.responses.Load() {
		return infer.PinnedMemory
	}
	return infer.HostMemory
}

// deviceBlock is device memory of the worker's own.
type deviceBlock struct {
	gpu   *gpu
	block cuda.Block
	refs  atomic.Int32 // of the execution that took it, and of each resident output in it
}

func (g *gpu) take(n int64) (*deviceBlock, error) {
	b, err := g.heap.Alloc(n)
	if err != nil {
		return nil, err
	}
	d := &deviceBlock{gpu: g, block: b}
	d.refs.Store(1)
	return d, nil
}

func (b *deviceBlock) release() {
	if b.refs.Add(-1) == 0 {
		if err := b.gpu.heap.Free(b.block); err != nil {
			b.gpu.failed(err)
		}
	}
}

// residentTensor is a part of a block that stays when its batch has ended; it fits region.Device.
type residentTensor struct {
	block *deviceBlock
	at    cuda.Pointer
}

// Pointer fits region.Device.
func (k *residentTensor) Pointer() cuda.Pointer { return k.at }

// Read fits region.Device.
func (k *residentTensor) Read(to []byte, off int64) error {
	return k.block.gpu.Read(to, k.at+cuda.Pointer(off))
}

// Write fits region.Device; nobody writes it.
func (k *residentTensor) Write(int64, []byte) error {
	return infer.Errorf(infer.Internal, "a resident output can't be written")
}

// Close fits region.Device.
func (k *residentTensor) Close() error {
	k.block.release()
	return nil
}
