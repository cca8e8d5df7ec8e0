package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// connect makes a gRPC connection, which its caller closes.
func (s *server) connect() (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if s.tls != nil {
		secure = credentials.NewTLS(s.tls.Clone())
	}
	return grpc.NewClient(s.grpc, grpc.WithTransportCredentials(secure), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
}

// dialGRPC is a gRPC client with a connection of its own.
func (s *server) dialGRPC() (inference.GRPCInferenceServiceClient, func(), error) {
	conn, err := s.connect()
	if err != nil {
		return nil, nil, err
	}
	return inference.NewGRPCInferenceServiceClient(conn), func() { _ = conn.Close() }, nil
}

// overGRPC makes a client; a fault in making it is that of its exchanges.
func overGRPC(s *server, do func(ctx context.Context, c inference.GRPCInferenceServiceClient) error) (exchange, func()) {
	c, closed, err := s.dialGRPC()
	if err != nil {
		return func(context.Context) error { return err }, func() {}
	}
	return func(ctx context.Context) error { return do(ctx, c) }, closed
}

func echoMessage(v []int32, id string) *inference.ModelInferRequest {
	m := checked.Message("echo", "INPUT0", 1, v)
	m.Id = id
	return m
}

func openUnary(most int) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		return overGRPC(s, func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
			v, id := checked.Values(rng, 1+rng.IntN(most)), strconv.Itoa(rng.IntN(1e9))
			got, err := c.ModelInfer(ctx, echoMessage(v, id))
			if err != nil {
				return err
			}
			return checked.CheckEcho(got, v, id)
		})
	}
}

// openStreaming asks many things on a stream, and wants the answers in their order.
func openStreaming(s *server, rng *rand.Rand) (exchange, func()) {
	return overGRPC(s, func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		stream, err := c.ModelStreamInfer(ctx)
		if err != nil {
			return err
		}
		n := 1 + rng.IntN(20)
		sent := make([][]int32, n)
		for i := range sent {
			sent[i] = checked.Values(rng, 1+rng.IntN(2000))
		}
		failed := make(chan error, 1)
		go func() {
			for i, v := range sent {
				if err := stream.Send(echoMessage(v, strconv.Itoa(i))); err != nil && err != io.EOF {
					failed <- err
					return
				}
			}
			failed <- stream.CloseSend()
		}()
		for i, v := range sent {
			got, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("answer %d of %d: %w", i, n, err)
			}
			if got.ErrorMessage != "" {
				return fmt.Errorf("answer %d of %d: %s", i, n, got.ErrorMessage)
			}
			if err := checked.CheckEcho(got.InferResponse, v, strconv.Itoa(i)); err != nil {
				return err
			}
		}
		if _, err := stream.Recv(); err != io.EOF {
			return fmt.Errorf("the end of the stream: %w", err)
		}
		return <-failed
	})
}

func repeatMessage(n int, delay uint32, padding string) *inference.ModelInferRequest {
	var in, delays []byte
	for i := range n {
		in = binary.LittleEndian.AppendUint32(in, uint32(i))
		delays = binary.LittleEndian.AppendUint32(delays, delay)
	}
	tensor := func(name, datatype string, n int) *inference.ModelInferRequest_InferInputTensor {
		return &inference.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: []int64{int64(n)}}
	}
	m := &inference.ModelInferRequest{ModelName: "repeat", RawInputContents: [][]byte{in, delays, make([]byte, 4)},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{tensor("IN", "INT32", n), tensor("DELAY", "UINT32", n), tensor("WAIT", "UINT32", 1)}}
	if padding != "" {
		m.Parameters = map[string]*inference.InferParameter{"padding": {ParameterChoice: &inference.InferParameter_StringParam{StringParam: padding}}}
	}
	return m
}

// openDecoupled wants all answers of a decoupled model, and no other.
func openDecoupled(s *server, rng *rand.Rand) (exchange, func()) {
	return overGRPC(s, func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		stream, err := c.ModelStreamInfer(ctx)
		if err != nil {
			return err
		}
		n := 1 + rng.IntN(30)
		if err := stream.Send(repeatMessage(n, uint32(rng.IntN(3)), "")); err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		for i := range n {
			got, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("answer %d of %d: %w", i, n, err)
			}
			if got.ErrorMessage != "" {
				return fmt.Errorf("answer %d of %d: %s", i, n, got.ErrorMessage)
			}
			out := got.InferResponse.GetRawOutputContents()
			if len(out) != 2 || len(out[0]) != 4 || binary.LittleEndian.Uint32(out[0]) != uint32(i) {
				return checked.Wrongf("answer %d of %d is %v", i, n, out)
			}
		}
		if _, err := stream.Recv(); err != io.EOF {
			return fmt.Errorf("the end of the stream: %v", err)
		}
		return nil
	})
}
