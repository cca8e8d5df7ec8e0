package grpcapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/gateway/h2"
	"github.com/sluice-serve/sluice/gateway/timing"
)

// timingTrailer tells a caller who asked where the time of its request went.
func timingTrailer(ctx context.Context, c *Call) {
	value := string(timing.Append(nil, &c.envelope, &c.Request))
	if st, ok := h2.FromContext(ctx); ok {
		st.SetTrailer(timing.Key, value)
		return
	}
	// It fails without a transport only, and then nobody reads it.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(timing.Key, value))
}
