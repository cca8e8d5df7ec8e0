package grpcapi

import (
	"context"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	orcasvcv3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/infer"
)

// Load says how busy the gateway is; gateway/load fits it.
type Load interface {
	// Trailer gives a trailer of an inference's answer, with "" as its value for none;
	// asked is the caller's metadata endpoint-load-metrics-format. It costs next to
	// nothing.
	Trailer(asked string) (key, value string)
	// Full is the report out of band; it is only read.
	Full() *orcav3.OrcaLoadReport
}

// formatKey is the metadata with which a caller asks for a report.
const formatKey = "endpoint-load-metrics-format"

// loadTrailer tells who balances between servers how busy this one is.
func (s *Service) loadTrailer(ctx context.Context, st *h2.Stream) {
	if s.load == nil {
		return
	}
	if st = onOurs(ctx, st); st != nil {
		if key, value := s.load.Trailer(st.Header(formatKey)); value != "" {
			st.SetTrailer(key, value)
		}
		return
	}
	asked := ""
	if v := metadata.ValueFromIncomingContext(ctx, formatKey); len(v) > 0 {
		asked = v[0]
	}
	key, value := s.load.Trailer(asked)
	if value == "" {
		return
	}
	// It fails without a transport only, and then nobody reads it.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(key, value))
}

// The bounds of the interval between two reports of a stream, and what it is where the
// caller names none. Source: the default is that of report_interval in
// xds.service.orca.v3.OpenRcaService; it leaves the lowest one to the server.
const (
	minReportInterval     = 50 * time.Millisecond
	maxReportInterval     = 10 * time.Minute
	defaultReportInterval = 30 * time.Second
)

// reportInterval is how often a caller gets a report.
func reportInterval(r *orcasvcv3.OrcaLoadReportRequest) time.Duration {
	asked := r.GetReportInterval().AsDuration()
	if asked <= 0 {
		return defaultReportInterval
	}
	return min(max(asked, minReportInterval), maxReportInterval)
}

// orcaService is the OpenRcaService over a Service.
type orcaService struct {
	orcasvcv3.UnimplementedOpenRcaServiceServer
	s *Service
}

// StreamCoreMetrics sends a report at once and then one in each interval, until the
// caller leaves or the service stops.
func (o orcaService) StreamCoreMetrics(r *orcasvcv3.OrcaLoadReportRequest, stream grpc.ServerStreamingServer[orcav3.OrcaLoadReport]) error {
	s := o.s
	env := infer.Envelope{Method: "StreamCoreMetrics"}
	ctx, err := s.open(stream.Context(), &env, infer.ActionStatistics, "", "")
	if err == nil {
		err = s.streamLoad(ctx, reportInterval(r), stream)
	} else {
		err = s.failed(stream.Context(), "StreamCoreMetrics", nil, err)
	}
	s.pipeline.Close(&env, &infer.End{Status: int(status.Code(err)), Err: err})
	return err
}

func (s *Service) streamLoad(ctx context.Context, every time.Duration, stream grpc.ServerStreamingServer[orcav3.OrcaLoadReport]) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := stream.Send(s.load.Full()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.stop:
			return statusOf(ctx, infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText))
		case <-ctx.Done():
			return statusOf(ctx, ctx.Err())
		}
	}
}
