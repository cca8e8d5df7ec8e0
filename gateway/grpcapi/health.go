package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

func (s *Service) ready(ctx context.Context) bool {
	return !s.stopping.Load() && s.control.ReadyNow(ctx)
}

func serving(ready bool) *healthgrpc.HealthCheckResponse {
	if ready {
		return &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_SERVING}
	}
	return &healthgrpc.HealthCheckResponse{Status: healthgrpc.HealthCheckResponse_NOT_SERVING}
}

// Check is the server's readiness, whatever service is asked for, as in the original.
// Source: grpc.health.v1; the original, asked with several service names.
func (s *Service) Check(ctx context.Context, _ *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	return answer(ctx, s, "Check", infer.ActionHealth, "", "", func() (*healthgrpc.HealthCheckResponse, error) {
		return serving(s.ready(ctx)), nil
	})
}

// Watch sends the readiness and every change of it, until the caller leaves or the
// service stops.
func (s *Service) Watch(_ *healthgrpc.HealthCheckRequest, stream grpc.ServerStreamingServer[healthgrpc.HealthCheckResponse]) error {
	env := infer.Envelope{Method: "Watch"}
	ctx, err := s.open(stream.Context(), &env, infer.ActionHealth, "", "")
	if err == nil {
		err = s.watch(ctx, stream)
	} else {
		err = s.failed(stream.Context(), "Watch", nil, err)
	}
	s.pipeline.Close(&env, &infer.End{Status: int(status.Code(err)), Err: err})
	return err
}

// watch is Watch once it is admitted.
func (s *Service) watch(ctx context.Context, stream grpc.ServerStreamingServer[healthgrpc.HealthCheckResponse]) error {
	// without a change to tell, the channel must end with this call
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, last, said := s.control.WatchReady(watching), false, false
	for {
		select {
		case now, ok := <-ready:
			if !ok {
				ready, now = nil, false
			}
			now = now && !s.stopping.Load()
			if said && now == last {
				continue
			}
			if err := stream.Send(serving(now)); err != nil {
				return err
			}
			last, said = now, true
		case <-s.stop:
			if last || !said {
				if err := stream.Send(serving(false)); err != nil {
					return err
				}
			}
			return statusOf(ctx, infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText))
		case <-ctx.Done():
			return statusOf(ctx, ctx.Err())
		}
	}
}
