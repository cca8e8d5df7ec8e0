package grpcapi

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/gateway/regions/regionstest"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// shared is a folder of shared memory with the file "memory" of 64 bytes.
func shared(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "test-grpcapi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(folder, "memory"), make([]byte, 64), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Regions are registered and named over the wire, by either codec; a request gets its
// places and gives its references back.
func TestRegions(t *testing.T) {
	onBothCodecs(t, func(t *testing.T, codec option) {
		registry := regionstest.New(t).Registry(regions.Config{Folder: shared(t)})
		r := start(t, codec, func(_ *Config, r *rig) { r.regions = registry })
		ctx := t.Context()
		if _, err := r.client.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: "a", Key: "/memory", Offset: 16, ByteSize: 48}); err != nil {
			t.Fatal(err)
		}
		all, err := r.client.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{})
		if g := all.GetRegions()["a"]; err != nil || len(all.Regions) != 1 || g.Name != "a" || g.Key != "/memory" || g.Offset != 16 || g.ByteSize != 48 {
			t.Fatalf("status: %v, %v", all, err)
		}
		m := fp32Request(4)
		m.RawInputContents = nil
		m.Inputs[0].Parameters = map[string]*inference.InferParameter{"shared_memory_region": stringParam("a"), "shared_memory_byte_size": intParam(16),
			"shared_memory_offset": intParam(8)}
		if _, err := r.client.ModelInfer(ctx, m); err != nil {
			t.Errorf("infer: %v", err)
		}
		r.settled(t)
		if n := registry.InUse(); n != 0 {
			t.Errorf("%d references are held after the answer", n)
		}
		m.Inputs[0].Parameters["shared_memory_offset"] = intParam(-1)
		_, err = r.client.ModelInfer(ctx, m)
		if s := status.Convert(err); s.Code() != codes.InvalidArgument || s.Message() != "Invalid offset for shared memory region: 'a'" {
			t.Errorf("infer beyond: %v", err)
		}
		if _, err := r.client.SystemSharedMemoryUnregister(ctx, &inference.SystemSharedMemoryUnregisterRequest{}); err != nil {
			t.Errorf("unregister: %v", err)
		}
		_, err = r.client.ModelInfer(ctx, m)
		if s := status.Convert(err); s.Code() != codes.NotFound || s.Message() != "Unable to find shared memory region: 'a'" {
			t.Errorf("infer without the region: %v", err)
		}
	})
}

// The texts and codes of faults in calls about regions.
func TestRegionFaults(t *testing.T) {
	registry := regionstest.New(t).Registry(regions.Config{Folder: shared(t)})
	r := start(t, func(_ *Config, r *rig) { r.regions = registry })
	for _, c := range []struct {
		method string
		in     any
		code   codes.Code
		text   string
	}{
		{"SystemSharedMemoryStatus", &inference.SystemSharedMemoryStatusRequest{Name: "x"}, codes.NotFound, "Unable to find system shared memory region: 'x'"},
		{"CudaSharedMemoryStatus", &inference.CudaSharedMemoryStatusRequest{Name: "x"}, codes.NotFound, "Unable to find cuda shared memory region: 'x'"},
		{"SystemSharedMemoryRegister", &inference.SystemSharedMemoryRegisterRequest{Name: "x", Key: "/absent", ByteSize: 1}, codes.Internal,
			"Unable to open shared memory region: '/absent'"},
		{"SystemSharedMemoryRegister", &inference.SystemSharedMemoryRegisterRequest{Name: "x", Key: "/memory", ByteSize: 65}, codes.InvalidArgument,
			"failed to register shared memory region 'x': invalid args"},
		{"SystemSharedMemoryRegister", &inference.SystemSharedMemoryRegisterRequest{Name: "x", Key: "/memory", Offset: 1 << 63, ByteSize: 1 << 63}, codes.InvalidArgument,
			"failed to register shared memory region 'x': invalid args"},
		{"CudaSharedMemoryRegister", &inference.CudaSharedMemoryRegisterRequest{Name: "x", RawHandle: []byte("short"), ByteSize: 1}, codes.InvalidArgument,
			"'raw_handle' must be a cudaIpcMemHandle_t of 64 bytes, got 5"},
		{"CudaSharedMemoryRegister", &inference.CudaSharedMemoryRegisterRequest{Name: "x", RawHandle: make([]byte, 64), DeviceId: -1, ByteSize: 1}, codes.InvalidArgument,
			"failed to register shared memory region 'x': there is no device -1"},
		{"SystemSharedMemoryUnregister", &inference.SystemSharedMemoryUnregisterRequest{Name: "x"}, codes.OK, ""},
		{"CudaSharedMemoryUnregister", &inference.CudaSharedMemoryUnregisterRequest{}, codes.OK, ""},
	} {
		err := r.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/"+c.method, c.in, &inference.TraceSettingResponse{})
		if s := status.Convert(err); s.Code() != c.code || s.Message() != c.text {
			t.Errorf("%s %v: got %v, want %v %s", c.method, c.in, err, c.code, c.text)
		}
	}
	without := start(t)
	_, err := without.client.SystemSharedMemoryStatus(t.Context(), &inference.SystemSharedMemoryStatusRequest{})
	if status.Code(err) != codes.Unimplemented || infer.CodeOf(infer.ErrNoRegions()) != infer.Unsupported {
		t.Errorf("without a registry: %v", err)
	}
}
