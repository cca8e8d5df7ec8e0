package grpcapi

import (
	"context"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// attach gives the tensors that lie in regions their places.
func (s *Service) attach(c *Call) error {
	if s.regions == nil {
		return infer.ErrNoRegions()
	}
	err := s.regions.Attach(&c.envelope, &c.Request, c.uses)
	clear(c.uses)
	c.uses = c.uses[:0]
	return err
}

// regional runs one call about regions: it is answer with the envelope, which says whose
// they are.
func regional[T any](ctx context.Context, s *Service, method string, ask func(ctx context.Context, env *infer.Envelope, r *regions.Registry) (*T, error)) (v *T, err error) {
	env := infer.Envelope{Method: method, Change: methods[method].changes}
	inner, err := s.open(ctx, &env, infer.ActionSharedMemory, "", "")
	switch {
	case err != nil:
	case s.regions == nil:
		err = infer.ErrNoRegions()
	default:
		v, err = ask(inner, &env, s.regions)
	}
	if err == nil {
		s.count(codes.OK)
	} else {
		v, err = nil, s.failed(inner, method, nil, err)
	}
	s.pipeline.Close(&env, &infer.End{Status: int(status.Code(err)), Err: err})
	return v, err
}

// SystemSharedMemoryStatus lists the caller's regions, or the one that is named.
func (s *Service) SystemSharedMemoryStatus(ctx context.Context, m *inference.SystemSharedMemoryStatusRequest) (*inference.SystemSharedMemoryStatusResponse, error) {
	return regional(ctx, s, "SystemSharedMemoryStatus", func(_ context.Context, env *infer.Envelope, r *regions.Registry) (*inference.SystemSharedMemoryStatusResponse, error) {
		all, err := r.Status(env, false, m.Name)
		out := &inference.SystemSharedMemoryStatusResponse{Regions: map[string]*inference.SystemSharedMemoryStatusResponse_RegionStatus{}}
		for _, g := range all {
			out.Regions[g.Name] = &inference.SystemSharedMemoryStatusResponse_RegionStatus{Name: g.Name, Key: g.Key, Offset: uint64(g.Offset), ByteSize: uint64(g.Size)}
		}
		return out, err
	})
}

// SystemSharedMemoryRegister registers a file of this host's shared memory.
func (s *Service) SystemSharedMemoryRegister(ctx context.Context, m *inference.SystemSharedMemoryRegisterRequest) (*inference.SystemSharedMemoryRegisterResponse, error) {
	return regional(ctx, s, "SystemSharedMemoryRegister", func(ctx context.Context, env *infer.Envelope, r *regions.Registry) (*inference.SystemSharedMemoryRegisterResponse, error) {
		spec := regions.Spec{Name: m.Name, Key: m.Key, Offset: m.Offset, Size: m.ByteSize}
		return &inference.SystemSharedMemoryRegisterResponse{}, r.Register(ctx, env, spec)
	})
}

// SystemSharedMemoryUnregister gives up a region of the caller's, or without a name all.
func (s *Service) SystemSharedMemoryUnregister(ctx context.Context, m *inference.SystemSharedMemoryUnregisterRequest) (*inference.SystemSharedMemoryUnregisterResponse, error) {
	return regional(ctx, s, "SystemSharedMemoryUnregister", func(ctx context.Context, env *infer.Envelope, r *regions.Registry) (*inference.SystemSharedMemoryUnregisterResponse, error) {
		return &inference.SystemSharedMemoryUnregisterResponse{}, unregister(ctx, env, r, false, m.Name)
	})
}

func unregister(ctx context.Context, env *infer.Envelope, r *regions.Registry, cuda bool, name string) error {
	if name == "" {
		return r.UnregisterAll(ctx, env, cuda)
	}
	return r.Unregister(ctx, env, cuda, name)
}

// CudaSharedMemoryStatus lists the caller's regions in device memory, or the one that is
// named.
func (s *Service) CudaSharedMemoryStatus(ctx context.Context, m *inference.CudaSharedMemoryStatusRequest) (*inference.CudaSharedMemoryStatusResponse, error) {
	return regional(ctx, s, "CudaSharedMemoryStatus", func(_ context.Context, env *infer.Envelope, r *regions.Registry) (*inference.CudaSharedMemoryStatusResponse, error) {
		all, err := r.Status(env, true, m.Name)
		out := &inference.CudaSharedMemoryStatusResponse{Regions: map[string]*inference.CudaSharedMemoryStatusResponse_RegionStatus{}}
		for _, g := range all {
			out.Regions[g.Name] = &inference.CudaSharedMemoryStatusResponse_RegionStatus{Name: g.Name, DeviceId: uint64(g.Device), ByteSize: uint64(g.Size)}
		}
		return out, err
	})
}

// CudaSharedMemoryRegister registers device memory of the caller by its handle.
func (s *Service) CudaSharedMemoryRegister(ctx context.Context, m *inference.CudaSharedMemoryRegisterRequest) (*inference.CudaSharedMemoryRegisterResponse, error) {
	return regional(ctx, s, "CudaSharedMemoryRegister", func(ctx context.Context, env *infer.Envelope, r *regions.Registry) (*inference.CudaSharedMemoryRegisterResponse, error) {
		h := &infer.CUDAHandle{}
		if len(m.RawHandle) != len(h.Raw) {
			return nil, infer.Errorf(infer.InvalidArg, "'raw_handle' must be a cudaIpcMemHandle_t of %d bytes, got %d", len(h.Raw), len(m.RawHandle))
		}
		copy(h.Raw[:], m.RawHandle)
		if h.Device = int(m.DeviceId); m.DeviceId < 0 || m.DeviceId > math.MaxInt32 {
			return nil, infer.Errorf(infer.InvalidArg, "failed to register shared memory region '%s': there is no device %d", m.Name, m.DeviceId)
		}
		return &inference.CudaSharedMemoryRegisterResponse{}, r.Register(ctx, env, regions.Spec{Name: m.Name, CUDA: h, Size: m.ByteSize})
	})
}

// CudaSharedMemoryUnregister gives up a region of the caller's in device memory, or
// without a name all.
func (s *Service) CudaSharedMemoryUnregister(ctx context.Context, m *inference.CudaSharedMemoryUnregisterRequest) (*inference.CudaSharedMemoryUnregisterResponse, error) {
	return regional(ctx, s, "CudaSharedMemoryUnregister", func(ctx context.Context, env *infer.Envelope, r *regions.Registry) (*inference.CudaSharedMemoryUnregisterResponse, error) {
		return &inference.CudaSharedMemoryUnregisterResponse{}, unregister(ctx, env, r, true, m.Name)
	})
}
