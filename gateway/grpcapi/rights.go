package grpcapi

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// method is what a method's name says of its calls.
type method struct {
	action  infer.Action
	changes bool // a call may change something
}

// methods are those of all services, by their last name. Source: triton.md A3.
var methods = map[string]method{
	"ServerLive":     {infer.ActionHealth, false},
	"ServerReady":    {infer.ActionHealth, false},
	"ModelReady":     {infer.ActionHealth, false},
	"Check":          {infer.ActionHealth, false},
	"Watch":          {infer.ActionHealth, false},
	"ServerMetadata": {infer.ActionMetadata, false},
	"ModelMetadata":  {infer.ActionMetadata, false},
	reflectionInfo:   {infer.ActionMetadata, false},

	"ModelInfer":       {infer.ActionInference, false},
	"ModelStreamInfer": {infer.ActionInference, false},

	"ModelConfig":       {infer.ActionModelConfig, false},
	"ModelStatistics":   {infer.ActionStatistics, false},
	"StreamCoreMetrics": {infer.ActionStatistics, false},
	"StreamPlacements":  {infer.ActionStatistics, false},
	"TraceSetting":      {infer.ActionTrace, true},
	"LogSettings":       {infer.ActionLogging, true},

	"RepositoryIndex":       {infer.ActionModelRepository, false},
	"RepositoryModelLoad":   {infer.ActionModelRepository, true},
	"RepositoryModelUnload": {infer.ActionModelRepository, true},
	"PurgeCache":            {infer.ActionModelRepository, true},

	"SystemSharedMemoryStatus":     {infer.ActionSharedMemory, false},
	"SystemSharedMemoryRegister":   {infer.ActionSharedMemory, true},
	"SystemSharedMemoryUnregister": {infer.ActionSharedMemory, true},
	"CudaSharedMemoryStatus":       {infer.ActionSharedMemory, false},
	"CudaSharedMemoryRegister":     {infer.ActionSharedMemory, true},
	"CudaSharedMemoryUnregister":   {infer.ActionSharedMemory, true},
}

// reflectionInfo is the one method of gRPC's reflection services.
const reflectionInfo = "ServerReflectionInfo"

// Describe fills in what a call's path, "/package.Service/Method", says of it: action
// and change. Its model, where it has one, is in its message. False: there is no such
// method. It is for who decides on calls without carrying them.
func Describe(path string, env *infer.Envelope) bool {
	service, name, ok := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	m, known := methods[name]
	if !ok || !known || !strings.HasPrefix(path, "/") || !ours(service) {
		return false
	}
	env.Protocol, env.Method = "grpc", name
	env.Action, env.Change = m.action, m.changes
	return true
}

func ours(service string) bool {
	switch service {
	case "inference.GRPCInferenceService", "grpc.health.v1.Health", "sluice.admin.Admin", "xds.service.orca.v3.OpenRcaService", "sluice.mesh.Placements",
		"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return true
	}
	return false
}

// shown is an answer without the models that the call may not see.
func shown[T any](s *Service, env *infer.Envelope, answer T) T {
	switch m := any(answer).(type) {
	case *inference.RepositoryIndexResponse:
		out := &inference.RepositoryIndexResponse{}
		for _, x := range m.Models {
			if s.pipeline.Visible(env, x.Name) {
				out.Models = append(out.Models, x)
			}
		}
		return any(out).(T)
	case *inference.ModelStatisticsResponse:
		out := &inference.ModelStatisticsResponse{}
		for _, x := range m.ModelStats {
			if s.pipeline.Visible(env, x.Name) {
				out.ModelStats = append(out.ModelStats, x)
			}
		}
		return any(out).(T)
	}
	return answer
}

// registerReflection adds gRPC's reflection to a transport, behind the pipeline.
func (s *Service) registerReflection(r reflection.GRPCServer) {
	reflection.Register(guardedServer{r, s})
}

// guardedServer puts the pipeline before the streams of what is registered on it.
type guardedServer struct {
	reflection.GRPCServer
	s *Service
}

// RegisterService is grpc.ServiceRegistrar's.
func (g guardedServer) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Streams = append([]grpc.StreamDesc(nil), desc.Streams...)
	for i := range d.Streams {
		handler, name := d.Streams[i].Handler, d.Streams[i].StreamName
		d.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			_, err := answer(stream.Context(), g.s, name, methods[name].action, "", "", func() (struct{}, error) {
				return struct{}{}, handler(srv, stream)
			})
			return err
		}
	}
	g.GRPCServer.RegisterService(&d, impl)
}
