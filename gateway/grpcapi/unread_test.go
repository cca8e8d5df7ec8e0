package grpcapi

import (
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/infer"
)

// TestUnreadResponses gives the memory of responses back when a client leaves that has read none of
// them, unary ones and those of streams.
func TestUnreadResponses(t *testing.T) {
	for _, method := range []string{"ModelInfer", "ModelStreamInfer"} {
		for _, compression := range []string{"none", "low"} {
			t.Run(method+" "+compression, func(t *testing.T) {
				onBothCodecs(t, func(t *testing.T, codec option) { unread(t, method, codec, compression) })
			})
		}
	}
}

func unread(t *testing.T, method string, codec option, compression string) {
	budget := &infer.Budget{Limit: 64 << 20}
	r := start(t, codec, func(c *Config, r *rig) { c.Compression, r.responses = compression, budget })
	conn, err := grpc.NewClient(r.server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
			"/inference.GRPCInferenceService/"+method)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(stream.SendMsg(fp32Request(256<<10)), stream.CloseSend()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the calls are answered", func() bool { return r.pipeline.opened.Load() >= 4 })
	if method == "ModelInfer" {
		eventually(t, "the calls have ended", func() bool { return r.pipeline.closed.Load() >= 4 })
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.settled(t)
	eventually(t, "nothing of the budget is out", func() bool { return budget.Used() == 0 })
}
