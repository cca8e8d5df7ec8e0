package grpcapi

import (
	"context"
	"regexp"
	"sync"
	"sync/atomic"

	orcasvcv3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/gateway/placements"
	"github.com/sluice-serve/sluice/gateway/regions"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/admin"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/proto/mesh"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// Pipeline is where requests go; gateway/pipeline fits it.
type Pipeline interface {
	// Open decides by the envelope alone, before the body is read. wait, where it is not
	// nil, is what is left of it: it must be called on a goroutine that may block, before
	// the request goes on.
	Open(ctx context.Context, env *infer.Envelope) (wait func() error, err error)
	// Close is called once for each call, also one that Open refused, when its answer is
	// made; end is read until it returns.
	Close(env *infer.Envelope, end *infer.End)
	// Start answers a request: to has what comes of it. wait, where it is not nil, must be
	// called on a goroutine that may block.
	Start(ctx context.Context, req *infer.Request, to infer.Sink) (wait func())
	// Infer is Start for a caller that waits: to is called on this goroutine, and its Done
	// before Infer returns.
	Infer(ctx context.Context, req *infer.Request, to infer.Sink)
	// Refused counts a request that was opened and never started; of req, model and
	// version are read.
	Refused(ctx context.Context, req *infer.Request, err error)
	// Visible says that a list which the call asked for may show a model.
	Visible(env *infer.Envelope, model string) bool
}

// Control answers everything that is no inference. A model or version that is not
// there is an error of its own but for ModelReadyNow, which says false.
type Control interface {
	Live() bool
	// ReadyNow and ModelReadyNow ask the models that say themselves whether they are ready. They may
	// take seconds.
	ReadyNow(ctx context.Context) bool
	ModelReadyNow(ctx context.Context, name, version string) (bool, error)
	ServerMetadata() *inference.ServerMetadataResponse
	ModelMetadata(name, version string) (*inference.ModelMetadataResponse, error)
	ModelConfig(name, version string) (*modelconfig.ModelConfig, error)
	Statistics(name, version string) (*inference.ModelStatisticsResponse, error)
	Index(ready bool) (*inference.RepositoryIndexResponse, error)
	// Load makes a model serve what its folder says, or the parameters bring, which
	// are never changed any more.
	Load(ctx context.Context, name string, params map[string]*inference.ModelRepositoryParameter) error
	// Unload takes a model out of service, with dependents those it alone needs.
	Unload(ctx context.Context, name string, dependents bool) error
	// PurgeCache removes answers from the response cache: of a model, one version, a tag.
	PurgeCache(ctx context.Context, model, version, tag string) (int64, error)
	LogSettings(*inference.LogSettingsRequest) (*inference.LogSettingsResponse, error)
	// TraceSettings changes what the request names, an empty value being a clear.
	TraceSettings(*inference.TraceSettingRequest) (*inference.TraceSettingResponse, error)
	// WatchReady sends whether the server is ready, without asking models: at once, then at every change, until ctx
	// ends. The receiver may be slow; only the newest value counts. It is closed when
	// nothing will follow.
	WatchReady(ctx context.Context) <-chan bool
}

// Bodies hands out counted memory for messages; gateway/memory fits it.
type Bodies interface{ h2.Memory }

// Deps are the collaborators of a Service. Failed may be nil.
type Deps struct {
	Pipeline Pipeline
	Control  Control
	Bodies   Bodies
	// Failed is told of every call that ends with an error, before the answer goes
	// out; req is nil for all but ModelInfer. It is called by handlers, many at a time.
	Failed func(ctx context.Context, method string, req *infer.Request, err error)
	// Answered is told the code of every unary call that ends; nil: nobody counts.
	Answered func(code codes.Code)
	Load     Load // nil: nothing is said of the load
	// Placements are the sequences that pickers of a mesh placed here; nil: no picker is told.
	Placements *placements.Registry
	Regions    *regions.Registry // of clients' shared memory; nil: there is none
	// Responses counts what responses hold on the heap until they are written; nil: it is not counted.
	Responses *infer.Budget
}

// Service is the v2 protocol over gRPC, whatever carries it. Make it with NewService.
type Service struct {
	inference.UnimplementedGRPCInferenceServiceServer
	healthgrpc.UnimplementedHealthServer

	pipeline Pipeline
	control  Control
	bodies   Bodies
	failure  func(context.Context, string, *infer.Request, error)
	answered func(codes.Code)
	load     Load // nil: none

	placements *placements.Registry // nil: none

	regions *regions.Registry // nil: none

	forward  *regexp.Regexp // headers that become parameters; nil: none
	standard bool
	compress bool // responses, where the client takes it

	stopping atomic.Bool
	stop     chan struct{} // closed when stopping
	stopOnce sync.Once

	decoders sync.Pool // *decoder
	frames   sync.Pool // *frame
	outputs  sync.Pool // *output

	heads *h2.CountedPool // pooled memory of messages
	heap  *h2.CountedPool // other memory of them
}

// ServiceConfig says how a Service reads and writes. The zero value forwards no
// headers, compresses nothing and uses the hand-written codec.
type ServiceConfig struct {
	// Forward is --grpc-header-forward-pattern: a regular expression that is looked for
	// anywhere in a header's name, in any case; "": none.
	Forward string
	// StandardCodec decodes and encodes ModelInfer by generated code.
	StandardCodec bool
	// CompressResponses compresses ModelInfer's responses for clients that accept it.
	CompressResponses bool
}

// NewService makes a Service. It fails on a pattern that is no regular expression.
func NewService(cfg ServiceConfig, deps Deps) (*Service, error) {
	s := &Service{pipeline: deps.Pipeline, control: deps.Control, bodies: deps.Bodies, failure: deps.Failed, answered: deps.Answered, load: deps.Load, regions: deps.Regions,
		placements: deps.Placements,
		standard:   cfg.StandardCodec,
		heads:      &h2.CountedPool{Budget: deps.Responses, Under: mem.DefaultBufferPool()},
		heap:       &h2.CountedPool{Budget: deps.Responses},
		compress:   cfg.CompressResponses, stop: make(chan struct{})}
	if cfg.Forward != "" {
		re, err := regexp.Compile("(?i)" + cfg.Forward)
		if err != nil {
			return nil, infer.Errorf(infer.InvalidArg, "header forward pattern: %w", err)
		}
		s.forward = re
	}
	return s, nil
}

// Register adds the inference and the health service to a transport, which must use
// Codec for their messages.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	desc := inference.GRPCInferenceService_ServiceDesc
	if !s.standard {
		desc.Methods = append([]grpc.MethodDesc(nil), desc.Methods...)
		for i := range desc.Methods {
			if desc.Methods[i].MethodName == "ModelInfer" {
				desc.Methods[i].Handler = modelInfer
			}
		}
	}
	r.RegisterService(&desc, s)
	r.RegisterService(&healthgrpc.Health_ServiceDesc, s)
	r.RegisterService(&admin.Admin_ServiceDesc, adminService{s: s})
	if s.load != nil {
		r.RegisterService(&orcasvcv3.OpenRcaService_ServiceDesc, orcaService{s: s})
	}
	if s.placements != nil {
		r.RegisterService(&mesh.Placements_ServiceDesc, placementsService{s: s, registry: s.placements})
	}
}

// Stop makes the service refuse new calls with the original's text and end what
// watches its health. Calls in flight go on.
func (s *Service) Stop() {
	s.stopOnce.Do(func() {
		s.stopping.Store(true)
		close(s.stop)
	})
}

// failed makes the transport's error of err, and tells of it.
func (s *Service) failed(ctx context.Context, method string, req *infer.Request, err error) error {
	if s.failure != nil {
		s.failure(ctx, method, req, err)
	}
	err = statusOf(ctx, err)
	s.count(status.Code(err))
	return err
}

func (s *Service) count(code codes.Code) {
	if s.answered != nil {
		s.answered(code)
	}
}

// Codec encodes and decodes the messages of this service: *Call by hand, everything
// else as protobuf does.
func (s *Service) Codec() encoding.CodecV2 { return codec{s} }

type codec struct{ s *Service }

// Name is protobuf's own: on the wire nothing differs.
func (codec) Name() string { return "proto" }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Call:
		m.traceSent()
		return m.reply, nil
	case *streamAnswer:
		return m.parts, nil
	case proto.Message:
		b, err := proto.Marshal(m)
		if err != nil {
			return nil, err
		}
		buf, err := c.s.heap.Buffer(b)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{buf}, nil
	}
	return nil, infer.Errorf(infer.Internal, "grpcapi: %T is no message", v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Call:
		if m.decoded {
			return infer.CallerErrorf("grpcapi: a second message in a unary call")
		}
		c.s.decode(m, data)
		return nil
	case *streamRequest:
		c.s.decode(&m.Call, data)
		return nil
	case proto.Message:
		if err := unmarshal(data, m); err != nil {
			return errMalformed
		}
		return nil
	}
	return infer.Errorf(infer.Internal, "grpcapi: %T is no message", v)
}

func unmarshal(data mem.BufferSlice, m proto.Message) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}
