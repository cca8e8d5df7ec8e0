package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/placements"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/mesh"
)

// placementsService is sluice.mesh.Placements over a Service.
type placementsService struct {
	mesh.UnimplementedPlacementsServer
	s        *Service
	registry *placements.Registry
}

// StreamPlacements tells a picker which sequences live here, until it leaves or the service stops.
func (p placementsService) StreamPlacements(_ *mesh.StreamPlacementsRequest, stream grpc.ServerStreamingServer[mesh.StreamPlacementsResponse]) error {
	s := p.s
	env := infer.Envelope{Method: "StreamPlacements"}
	ctx, err := s.open(stream.Context(), &env, infer.ActionStatistics, "", "")
	if err == nil {
		err = p.watch(ctx, stream)
	}
	if err != nil {
		err = s.failed(stream.Context(), "StreamPlacements", nil, err)
	}
	s.pipeline.Close(&env, &infer.End{Status: int(status.Code(err)), Err: err})
	return err
}

func (p placementsService) watch(ctx context.Context, stream grpc.ServerStreamingServer[mesh.StreamPlacementsResponse]) error {
	all, w := p.registry.Watch()
	defer w.Close()
	if err := tellPlaced(stream, all, true); err != nil {
		return err
	}
	for {
		select {
		case <-w.Changed():
			changes, err := w.Next()
			if err == nil {
				err = tellPlaced(stream, changes, false)
			}
			if err != nil {
				return err
			}
		case <-p.s.stop:
			return infer.Refusef(infer.Unavailable, infer.ReasonStopping, stoppingText)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// placedAtOnce bounds the changes of one message: some 100 KB.
const placedAtOnce = 1024

// tellPlaced sends changes in messages of a bounded size. all says that they are everything
// that lives.
func tellPlaced(stream grpc.ServerStreamingServer[mesh.StreamPlacementsResponse], changes []placements.Change, all bool) error {
	for len(changes) > 0 || all {
		n := min(len(changes), placedAtOnce)
		m := &mesh.StreamPlacementsResponse{Changes: make([]*mesh.PlacedSequence, 0, n)}
		for _, c := range changes[:n] {
			m.Changes = append(m.Changes, &mesh.PlacedSequence{Key: c.Key, Epoch: c.Epoch, State: mesh.PlacedSequence_State(c.State)})
		}
		changes = changes[n:]
		if all && len(changes) == 0 {
			m.Complete, all = true, false
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}
