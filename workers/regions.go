package workers

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/internal/region"
)

// maxPart bounds the bytes of one ReadRegion or WriteRegion.
const maxPart = 4 << 20

// OpenRegion fits worker.WorkerServer.
func (s *service) OpenRegion(ctx context.Context, r *worker.OpenRegionRequest) (*worker.OpenRegionResponse, error) {
	c, err := connectionOf(ctx)
	if err == nil {
		err = c.openRegion(r)
	}
	if err != nil {
		return nil, statusOf(err)
	}
	s.worker.log.Debug("opened a shared memory region", "region", r.GetName(), "slot", r.GetSlot(), "bytes", r.GetByteSize())
	return &worker.OpenRegionResponse{}, nil
}

func (c *connection) openRegion(r *worker.OpenRegionRequest) error {
	config := region.Config{Slot: r.GetSlot(), Name: r.GetName(), Offset: r.GetOffset(), Size: r.GetByteSize(), Again: r.GetAgain()}
	if r.GetToken() == 0 {
		return c.openDeviceRegion(config, r)
	}
	if c.lane == nil || c.lane.Pass == nil {
		return infer.Errorf(infer.Unsupported, "shared memory region '%s': this worker shares no memory with its gateway", r.GetName())
	}
	file, err := c.files.Take(int(c.lane.Pass.Fd()), r.GetToken())
	if err != nil {
		return infer.Errorf(infer.Internal, "shared memory region '%s': %w", r.GetName(), err)
	}
	return c.regions.Open(config, file)
}

// openDeviceRegion opens memory of the worker's GPU. What can't be opened any more in place
// of a lost worker is an error too: there is no device memory without its exporter.
func (c *connection) openDeviceRegion(config region.Config, r *worker.OpenRegionRequest) error {
	w := c.worker
	if !w.config.Device.GPU || w.config.Device.Index != int(r.GetDeviceId()) {
		return infer.Errorf(infer.InvalidArg, "failed to register CUDA shared memory region '%s': it is on GPU %d, this worker has %v",
			config.Name, r.GetDeviceId(), w.config.Device)
	}
	gpu, err := w.driver()
	if err != nil {
		return fmt.Errorf("failed to register CUDA shared memory region '%s': %w", config.Name, err)
	}
	if gpu == nil {
		return infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the worker is stopping")
	}
	m, err := gpu.Import(r.GetCudaHandle(), config.Size)
	if err != nil {
		return fmt.Errorf("failed to register CUDA shared memory region '%s': %w", config.Name, err)
	}
	return c.regions.OpenDevice(config, m)
}

// CloseRegion fits worker.WorkerServer.
func (s *service) CloseRegion(ctx context.Context, r *worker.CloseRegionRequest) (*worker.CloseRegionResponse, error) {
	c, err := connectionOf(ctx)
	if err == nil {
		err = errors.Join(c.dropFiles(r.GetToken()), c.regions.Close(ctx, r.GetSlot()))
	}
	if err != nil {
		return nil, statusOf(err)
	}
	s.worker.log.Debug("closed a shared memory region", "slot", r.GetSlot())
	return &worker.CloseRegionResponse{}, nil
}

// dropFiles closes the descriptors up to a number whose calls were given up.
func (c *connection) dropFiles(token uint64) error {
	if token == 0 || c.lane == nil || c.lane.Pass == nil {
		return nil
	}
	return c.files.Drop(int(c.lane.Pass.Fd()), token)
}

// ReadRegion fits worker.WorkerServer.
func (s *service) ReadRegion(ctx context.Context, r *worker.ReadRegionRequest) (*worker.ReadRegionResponse, error) {
	answer := &worker.ReadRegionResponse{}
	err := withRegion(ctx, r.GetSlot(), r.GetOffset(), r.GetByteSize(), func(m *region.Region) error {
		answer.Data = make([]byte, r.GetByteSize())
		return m.Read(answer.Data, r.GetOffset())
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return answer, nil
}

// WriteRegion fits worker.WorkerServer.
func (s *service) WriteRegion(ctx context.Context, r *worker.WriteRegionRequest) (*worker.WriteRegionResponse, error) {
	err := withRegion(ctx, r.GetSlot(), r.GetOffset(), int64(len(r.GetData())), func(m *region.Region) error {
		return m.Write(r.GetOffset(), r.GetData())
	})
	if err != nil {
		return nil, statusOf(err)
	}
	return &worker.WriteRegionResponse{}, nil
}

// withRegion calls f with a region whose memory is there, before and after.
func withRegion(ctx context.Context, slot uint32, off, n int64, f func(m *region.Region) error) error {
	c, err := connectionOf(ctx)
	if err != nil {
		return err
	}
	m := c.regions.Acquire(slot)
	if m == nil {
		return noRegion(slot)
	}
	defer m.Release()
	if n > maxPart {
		return infer.Errorf(infer.InvalidArg, "%d bytes at a time, the most is %d", n, maxPart)
	}
	if err := m.Check(off, n); err != nil {
		return err
	}
	if err := f(m); err != nil {
		return err
	}
	return m.Err()
}

func noRegion(slot uint32) error {
	return infer.Errorf(infer.Unavailable, "this worker has no shared memory region in slot %d", slot)
}
