// Command grpcgo asks a server everything that a client of grpc-go may, and checks what it answers.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/inference"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// checks are what is tried, each on a connection that the others use too.
var checks = []struct {
	name string
	run  func(context.Context, *grpc.ClientConn) error
}{
	{"metadata", metadata}, {"sizes", sizes}, {"gzip", gzipped}, {"many at once", many}, {"errors", faults}, {"stream", stream},
	{"cancel", cancelled}, {"deadline", deadline}, {"health", health}, {"reflection", reflection},
}

func run(address string) (err error) {
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cc.Close()) }()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	for _, c := range checks {
		if e := c.run(ctx, cc); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", c.name, e))
			continue
		}
		fmt.Println("ok", c.name)
	}
	return err
}

func request(values ...int32) *inference.ModelInferRequest {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	return &inference.ModelInferRequest{ModelName: "identity", Id: fmt.Sprint(len(values)), RawInputContents: [][]byte{raw},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "INT32", Shape: []int64{int64(len(values))}}}}
}

func same(m *inference.ModelInferRequest, got *inference.ModelInferResponse) error {
	if got.Id != m.Id || len(got.RawOutputContents) != 1 || !bytes.Equal(got.RawOutputContents[0], m.RawInputContents[0]) {
		return fmt.Errorf("%s came back as %s in %d parts", m.Id, got.Id, len(got.RawOutputContents))
	}
	return nil
}

func metadata(ctx context.Context, cc *grpc.ClientConn) error {
	c := inference.NewGRPCInferenceServiceClient(cc)
	s, err := c.ServerMetadata(ctx, &inference.ServerMetadataRequest{})
	if err != nil || s.Name != "triton" || len(s.Extensions) == 0 {
		return fmt.Errorf("the server says %v, %w", s, err)
	}
	m, err := c.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "identity"})
	if err != nil || len(m.Inputs) != 1 || m.Inputs[0].Datatype != "INT32" {
		return fmt.Errorf("the model says %v, %w", m, err)
	}
	return nil
}

// sizes go up to more than any window.
func sizes(ctx context.Context, cc *grpc.ClientConn) error { return echo(ctx, cc, 10<<20) }

func gzipped(ctx context.Context, cc *grpc.ClientConn) error {
	return echo(ctx, cc, 1<<20, grpc.UseCompressor(gzip.Name))
}

func echo(ctx context.Context, cc *grpc.ClientConn, most int, options ...grpc.CallOption) error {
	c := inference.NewGRPCInferenceServiceClient(cc)
	for n := 1; n <= most; n *= 7 {
		values := make([]int32, n)
		for i := range values {
			values[i] = int32(i * 77)
		}
		m := request(values...)
		got, err := c.ModelInfer(ctx, m, options...)
		if err == nil {
			err = same(m, got)
		}
		if err != nil {
			return fmt.Errorf("%d values: %w", n, err)
		}
	}
	return nil
}

func many(ctx context.Context, cc *grpc.ClientConn) error {
	c := inference.NewGRPCInferenceServiceClient(cc)
	errs := make([]error, 64)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for k := range 20 {
				m := request(int32(i), int32(k))
				got, err := c.ModelInfer(ctx, m)
				if err == nil {
					err = same(m, got)
				}
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func faults(ctx context.Context, cc *grpc.ClientConn) error {
	c := inference.NewGRPCInferenceServiceClient(cc)
	m := request(1)
	m.ModelName = "none"
	_, err := c.ModelInfer(ctx, m)
	if s := status.Convert(err); s.Code() != codes.NotFound || !strings.Contains(s.Message(), "'none'") {
		return fmt.Errorf("an unknown model: %w", err)
	}
	m = request(1)
	m.Inputs[0].Name = "ünbekannt %"
	_, err = c.ModelInfer(ctx, m)
	if s := status.Convert(err); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "ünbekannt %") {
		return fmt.Errorf("an unknown input: %w", err)
	}
	err = cc.Invoke(ctx, "/inference.GRPCInferenceService/None", m, m)
	if s := status.Convert(err); s.Code() != codes.Unimplemented {
		return fmt.Errorf("an unknown method: %w", err)
	}
	return nil
}

// repeated asks a model that answers as often as it has values.
func repeated(wait uint32, values ...int32) *inference.ModelInferRequest {
	m := request(values...)
	m.ModelName = "repeat"
	m.Inputs[0].Name = "IN"
	n := int64(len(values))
	m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: "DELAY", Datatype: "UINT32", Shape: []int64{n}},
		&inference.ModelInferRequest_InferInputTensor{Name: "WAIT", Datatype: "UINT32", Shape: []int64{1}})
	m.RawInputContents = append(m.RawInputContents, make([]byte, 4*n), binary.LittleEndian.AppendUint32(nil, wait))
	return m
}

func stream(ctx context.Context, cc *grpc.ClientConn) error {
	st, err := inference.NewGRPCInferenceServiceClient(cc).ModelStreamInfer(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(st.Send(repeated(0, 5, 6, 7)), st.CloseSend()); err != nil {
		return err
	}
	var got []string
	for {
		m, err := st.Recv()
		if err == io.EOF {
			break
		}
		if err != nil || m.ErrorMessage != "" {
			return fmt.Errorf("%s %w", m.GetErrorMessage(), err)
		}
		got = append(got, fmt.Sprint(binary.LittleEndian.Uint32(m.InferResponse.RawOutputContents[0])))
	}
	if g := strings.Join(got, " "); g != "5 6 7" {
		return fmt.Errorf("got %s", g)
	}
	return nil
}

func cancelled(ctx context.Context, cc *grpc.ClientConn) error {
	ctx, stop := context.WithCancel(ctx)
	st, err := inference.NewGRPCInferenceServiceClient(cc).ModelStreamInfer(ctx)
	if err == nil {
		err = st.Send(repeated(5000, 1, 2))
	}
	stop()
	if err != nil {
		return err
	}
	for err == nil {
		_, err = st.Recv()
	}
	if status.Code(err) != codes.Canceled {
		return fmt.Errorf("got %w", err)
	}
	return nil
}

func deadline(ctx context.Context, cc *grpc.ClientConn) error {
	ctx, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	st, err := inference.NewGRPCInferenceServiceClient(cc).ModelStreamInfer(ctx)
	if err == nil {
		err = st.Send(repeated(5000, 1, 2))
	}
	for err == nil {
		_, err = st.Recv()
	}
	if status.Code(err) != codes.DeadlineExceeded {
		return fmt.Errorf("got %w", err)
	}
	return nil
}

func health(ctx context.Context, cc *grpc.ClientConn) error {
	c := healthpb.NewHealthClient(cc)
	got, err := c.Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("got %v, %w", got, err)
	}
	return nil
}

func reflection(ctx context.Context, cc *grpc.ClientConn) error {
	st, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	ask := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	if err := errors.Join(st.Send(ask), st.CloseSend()); err != nil {
		return err
	}
	got, err := st.Recv()
	if err != nil || !strings.Contains(got.String(), "inference.GRPCInferenceService") {
		return fmt.Errorf("got %v, %w", got, err)
	}
	return nil
}
