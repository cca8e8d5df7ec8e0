package workers

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// service fits the server of proto/worker.
type service struct {
	worker.UnimplementedWorkerServer
	worker *Worker
}

// Hello fits worker.WorkerServer.
func (s *service) Hello(ctx context.Context, r *worker.HelloRequest) (*worker.HelloResponse, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	if r.GetProtocol() != Protocol {
		return nil, statusOf(infer.Errorf(infer.Unsupported, "the gateway speaks protocol %d, this worker %d: use those of one release", r.GetProtocol(), Protocol))
	}
	w := s.worker
	if err := w.begin(); err != nil {
		return nil, statusOf(err)
	}
	defer w.running.Done()
	answer := &worker.HelloResponse{
		Protocol: Protocol, WorkerVersion: w.config.Version, Pid: int64(os.Getpid()), Devices: []*worker.Device{w.device()},
	}
	if c.lane != nil && slices.Contains(r.GetLane(), wire.Table) {
		answer.Lane = wire.Table
	}
	c.laneOn.Store(answer.Lane != 0)
	c.calls.on.Store(r.GetCalls())
	c.tellRead.Store(r.GetInputsRead())
	c.goesOn.Store(r.GetGoesOn())
	answer.Calls = r.GetCalls()
	for _, name := range slices.Sorted(maps.Keys(w.deps.Backends)) {
		info := &worker.Backend{Name: name}
		if b, err := w.backendFor(name, nil); err != nil {
			info.Unavailable = textOf(err)
		} else {
			info = b.Info().Message(name)
			info.Gpu = info.Gpu && w.config.Device.GPU
		}
		answer.Backends = append(answer.Backends, info)
	}
	return answer, nil
}

// Describe fits worker.WorkerServer.
func (s *service) Describe(ctx context.Context, r *worker.DescribeRequest) (*worker.DescribeResponse, error) {
	d, err := s.describe(ctx, r)
	if err != nil {
		return nil, statusOf(err)
	}
	return &worker.DescribeResponse{Inputs: tensorInfos(d.Inputs), Outputs: tensorInfos(d.Outputs), Patch: d.Patch,
		Findings: d.Findings, Remarks: d.Remarks}, nil
}

func (s *service) describe(ctx context.Context, r *worker.DescribeRequest) (*backend.Description, error) {
	spec, err := describeSpec(r)
	if err != nil {
		return nil, err
	}
	if c, err := connectionOf(ctx); err == nil {
		spec.Arenas = c.arenas()
	}
	if err := s.worker.begin(); err != nil {
		return nil, err
	}
	defer s.worker.running.Done()
	name := r.GetBackend()
	if name == "" {
		name = s.worker.backendName(r.GetConfig(), r.GetOptions())
	}
	b, err := s.worker.backendFor(name, r.GetOptions().GetOptions())
	if err != nil {
		return nil, err
	}
	return s.worker.describeBackend(ctx, b, spec)
}

func tensorInfos(ts []backend.TensorInfo) []*worker.TensorInfo {
	out := make([]*worker.TensorInfo, len(ts))
	for i := range ts {
		t := &ts[i]
		out[i] = &worker.TensorInfo{Name: t.Name, DataType: modelconfig.DataType(t.Datatype), Shape: t.Shape, Optional: t.Optional}
	}
	return out
}

// Load fits worker.WorkerServer.
func (s *service) Load(ctx context.Context, r *worker.LoadRequest) (*worker.LoadResponse, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	spec, err := specOf(r.GetModel(), r.GetVersion(), r.GetModelDir(), r.GetModelFile())
	if err == nil {
		spec.BackendFile, err = backendFile(r.GetModel(), r.GetOptions())
	}
	if err != nil {
		return nil, statusOf(err)
	}
	spec.Config, spec.Instances = r.GetConfig(), len(r.GetInstances())
	spec.Arenas = c.arenas()
	m := &model{handle: r.GetHandle(), spec: spec, ready: make(chan struct{}), stopped: make(chan struct{})}
	if err := c.add(ctx, m); err != nil {
		return nil, statusOf(err)
	}
	measured := s.worker.measure()
	m.err = m.load(ctx, s.worker, c, r)
	memory := m.took(measured.done())
	close(m.ready)
	if m.err != nil {
		c.remove(m)
		return nil, statusOf(m.err)
	}
	s.worker.log.Debug("loaded a model", "model", spec.Name, "version", spec.Version, "instances", spec.Instances)
	return &worker.LoadResponse{Memory: memory, OpenRequests: uint32(m.openRequests), MemoryKinds: m.memoryKinds(),
		RequestContext: m.requestContext, Readiness: len(m.asked()) > 0}, nil
}

// Ready fits worker.WorkerServer.
func (s *service) Ready(ctx context.Context, r *worker.ReadyRequest) (*worker.ReadyResponse, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	m, err := c.find(r.GetHandle())
	if err != nil {
		return nil, statusOf(err)
	}
	select {
	case <-m.ready:
	default:
		return &worker.ReadyResponse{Reason: "the model is being loaded"}, nil
	}
	if err := m.notReady(ctx); err != nil {
		s.worker.log.Debug("a model is not ready", "model", m.spec.Name, "version", m.spec.Version, "reason", err)
		return &worker.ReadyResponse{Reason: textOf(err)}, nil
	}
	return &worker.ReadyResponse{}, nil
}

// Unload fits worker.WorkerServer.
func (s *service) Unload(ctx context.Context, r *worker.UnloadRequest) (*worker.UnloadResponse, error) {
	c, err := connectionOf(ctx)
	if err != nil {
		return nil, statusOf(err)
	}
	m, err := c.find(r.GetHandle())
	if err != nil {
		return nil, statusOf(err)
	}
	if err := m.unload(ctx, c); err != nil {
		return nil, statusOf(err)
	}
	s.worker.log.Debug("unloaded a model", "model", m.spec.Name, "version", m.spec.Version)
	return &worker.UnloadResponse{}, nil
}

// Execute fits worker.WorkerServer.
func (s *service) Execute(server grpc.BidiStreamingServer[worker.ExecuteRequest, worker.ExecuteResponse]) error {
	c, err := connectionOf(server.Context())
	if err != nil {
		return statusOf(err)
	}
	st := &stream{server: server, pending: map[uint64]*streamBatch{}}
	defer st.end()
	read := make(chan error, 1)
	go func() { read <- st.read(c) }() // it ends with the call: Recv then fails
	select {
	case err = <-read:
	case <-s.worker.stopping:
		err = infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the worker is stopping")
	}
	st.wait(server.Context())
	return statusOf(err)
}

// Calls fits worker.WorkerServer.
func (s *service) Calls(server grpc.BidiStreamingServer[worker.CallAnswer, worker.Call]) error {
	c, err := connectionOf(server.Context())
	if err != nil {
		return statusOf(err)
	}
	defer c.calls.endStream()
	ended := make(chan error, 1)
	go func() { ended <- c.calls.serve(server) }() // it ends with the call: Recv then fails
	select {
	case err = <-ended:
	case <-s.worker.stopping:
		err = infer.Refusef(infer.Unavailable, infer.ReasonStopping, "the worker is stopping")
	}
	return statusOf(err)
}

// refuseOthers answers calls of services that a worker does not have. A gateway of protocol 1
// asks for one of those.
func refuseOthers(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if strings.HasPrefix(method, "/sluice.worker.") {
		return status.Errorf(codes.Unimplemented, "the gateway called %s, this worker speaks protocol %d: use those of one release", method, Protocol)
	}
	return status.Errorf(codes.Unimplemented, "a worker has no method %s", method)
}
