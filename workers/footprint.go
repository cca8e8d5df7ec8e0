package workers

import (
	"sync"

	"github.com/sluice-serve/sluice/proto/worker"
)

// footprint tells how much memory a load took, from what the process, or the device,
// used before and after it. Loads at the same time share the growth of each moment
// evenly: nothing tells whose it was. It is safe for concurrent use.
type footprint struct {
	used func() int64 // bytes in use now

	mu     sync.Mutex
	last   int64                // guarded by mu: of used, at the last event
	active map[*growth]struct{} // guarded by mu
}

// growth is one load's share.
type growth struct {
	bytes float64 // guarded by footprint.mu
}

func newFootprint(used func() int64) *footprint {
	return &footprint{used: used, active: map[*growth]struct{}{}}
}

// begin starts measuring a load; nil where nothing can be measured.
func (f *footprint) begin() *growth {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settleLocked()
	g := &growth{}
	f.active[g] = struct{}{}
	return g
}

// end is the bytes that the load took, at least 0.
func (f *footprint) end(g *growth) int64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settleLocked()
	delete(f.active, g)
	return int64(max(g.bytes, 0))
}

// moved notes that memory was given back by something that is no load.
func (f *footprint) moved(free func()) {
	if f == nil {
		free()
		return
	}
	f.mu.Lock()
	f.settleLocked()
	f.mu.Unlock()
	free()
	f.mu.Lock()
	f.last = f.used()
	f.mu.Unlock()
}

func (f *footprint) settleLocked() {
	now := f.used()
	for g := range f.active {
		g.bytes += float64(now-f.last) / float64(len(f.active))
	}
	f.last = now
}

// measured is one load under way.
type measured struct {
	w        *Worker
	cpu, gpu *growth
}

func (w *Worker) measure() measured {
	return measured{w: w, cpu: w.hostMemory.begin(), gpu: w.deviceMemory.begin()}
}

// done is the load's memory for its answer.
func (m measured) done() []*worker.MemoryUsage {
	usage := []*worker.MemoryUsage{{Type: "CPU", ByteSize: m.w.hostMemory.end(m.cpu)}}
	if m.gpu != nil {
		usage = append(usage, &worker.MemoryUsage{Type: "GPU", Id: int64(m.w.config.Device.Index), ByteSize: m.w.deviceMemory.end(m.gpu)})
	}
	return usage
}

// took is the memory of a load: where it made the backend's model, what it measured;
// where it shares it, that of the first load too.
func (m *model) took(memory []*worker.MemoryUsage) []*worker.MemoryUsage {
	s, ok := m.loaded.(*shared)
	switch {
	case !ok: // it failed
	case s.memory == nil:
		s.memory = memory
	default:
		for i := range memory {
			memory[i].ByteSize += s.memory[i].ByteSize
		}
	}
	return memory
}

// deviceBytes is the memory in use on the worker's GPU, by whomever; 0 where it can't be
// read.
func (w *Worker) deviceBytes() int64 {
	w.gpuMu.Lock()
	defer w.gpuMu.Unlock()
	g, err := w.deps.GPU()
	if err != nil {
		w.log.Debug("the GPU's state could not be read", "error", err)
	}
	return g.GetMemoryUsedBytes()
}
