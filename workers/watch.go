package workers

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/internal/tick"
	"github.com/sluice-serve/sluice/proto/worker"
)

const (
	defaultInterval = 2 * time.Second
	shortInterval   = 50 * time.Millisecond
)

// Watch fits worker.WorkerServer.
func (s *service) Watch(r *worker.WatchRequest, server grpc.ServerStreamingServer[worker.WatchResponse]) error {
	c, err := connectionOf(server.Context())
	if err != nil {
		return statusOf(err)
	}
	interval := defaultInterval
	if ms := r.GetIntervalMs(); ms > 0 {
		interval = max(time.Duration(min(ms, int64(time.Hour/time.Millisecond)))*time.Millisecond, shortInterval)
	}
	next, look := tick.New(interval), time.NewTimer(interval)
	defer next.Stop()
	defer look.Stop()
	for {
		lost := s.worker.losses.next()
		state := s.worker.state(c)
		if err := server.Send(state); err != nil {
			return err
		}
		for down := downIn(state.GetModels()); ; {
			var soon <-chan time.Time
			if len(down) > 0 { // it may execute again soon
				look.Reset(shortInterval)
				soon = look.C
			}
			select {
			case <-next.C:
				next.Next()
			case <-lost:
			case <-soon:
				if slices.Equal(downIn(s.worker.loaded(c)), down) {
					continue
				}
			case <-s.worker.stopping:
				return nil
			case <-server.Context().Done():
				return nil
			}
			break
		}
	}
}

// losses tell reports of instances that have lost what they had, so that they are made at once.
type losses struct {
	mu   sync.Mutex
	news chan struct{} // guarded by mu: closed at the next loss; nil: nobody waits for it
}

// next is closed when an instance has lost what it had.
func (l *losses) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news == nil {
		l.news = make(chan struct{})
	}
	return l.news
}

// note says that an instance has lost what it had.
func (l *losses) note() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.news != nil {
		close(l.news)
		l.news = nil
	}
}

// downInstance is an instance that can't execute.
type downInstance struct {
	model    uint64
	instance uint32
}

// downIn are the instances that can't execute, in the order of the models.
func downIn(models []*worker.LoadedModel) (down []downInstance) {
	for _, m := range models {
		for _, i := range m.GetDown() {
			down = append(down, downInstance{m.GetHandle(), i})
		}
	}
	return down
}

// state is what the gateway of c may know: its own models.
func (w *Worker) state(c *connection) *worker.WatchResponse {
	r := &worker.WatchResponse{ResidentBytes: residentBytes()}
	device := &worker.DeviceState{Device: w.device()}
	if w.config.Device.GPU && w.deps.GPU != nil {
		w.gpuMu.Lock()
		g, err := w.deps.GPU()
		w.gpuMu.Unlock()
		if err != nil {
			w.log.Debug("the GPU's state could not be read", "error", err)
		} else if g != nil {
			device = proto.CloneOf(g)
			device.Device = w.device()
			device.Device.Uuid, device.Device.Name = g.GetDevice().GetUuid(), g.GetDevice().GetName()
			device.Device.MemoryBytes = g.GetMemoryTotalBytes()
		}
	}
	r.Devices = append(r.Devices, device)
	r.Models = w.loaded(c)
	return r
}

// loaded are the models of c, ascending by their handles.
func (w *Worker) loaded(c *connection) (models []*worker.LoadedModel) {
	c.mu.Lock()
	for _, m := range c.models {
		select {
		case <-m.ready:
		default:
			continue
		}
		loaded := &worker.LoadedModel{Handle: m.handle, Model: m.spec.Name, Version: m.spec.Version}
		for _, inst := range m.instances {
			loaded.Executions += inst.executions.Load()
			if made := inst.made.Load(); made != nil && (*made).Fault() != nil {
				loaded.Down = append(loaded.Down, inst.index)
			}
		}
		models = append(models, loaded)
	}
	c.mu.Unlock()
	slices.SortFunc(models, func(a, b *worker.LoadedModel) int { return cmp.Compare(a.Handle, b.Handle) })
	return models
}

func (w *Worker) device() *worker.Device {
	if w.config.Device.GPU {
		return &worker.Device{Kind: worker.Device_GPU, Id: int32(w.config.Device.Index)}
	}
	return &worker.Device{Kind: worker.Device_CPU}
}

// residentBytes is the process's resident memory, 0 where it can't be read.
func residentBytes() int64 {
	resident, _ := statm()
	return resident
}

// privateBytes is residentBytes without what is shared: arenas and files.
func privateBytes() int64 {
	resident, shared := statm()
	return max(resident-shared, 0)
}

// statm is the second and the third number of /proc/self/statm in bytes.
// Source: proc(5).
func statm() (resident, shared int64) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(data)
	if len(fields) < 3 {
		return 0, 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	files, errFiles := strconv.ParseInt(string(fields[2]), 10, 64)
	if err != nil || errFiles != nil {
		return 0, 0
	}
	return pages * int64(os.Getpagesize()), files * int64(os.Getpagesize())
}
