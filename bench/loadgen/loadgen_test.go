package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/inference"
)

func measure(t *testing.T, protocol, address, model string, shape ...int64) result {
	t.Helper()
	o := options{protocol: protocol, address: address, model: model, input: "INPUT0", shape: shape, concurrency: 8, streams: 3,
		warmup: 20 * time.Millisecond, duration: 300 * time.Millisecond}
	r, err := run(t.Context(), nil, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func check(t *testing.T, r result) {
	t.Helper()
	if r.Errors != 0 || r.Requests == 0 || r.PerSecond <= 0 || r.P50 <= 0 || r.P99 < r.P50 {
		t.Errorf("result %+v", r)
	}
}

func TestHTTP(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Inference-Header-Content-Length") == "" || !strings.Contains(string(body), `"binary_data_size":64`) {
			t.Errorf("request %q: %v", body, err)
		}
		if r.URL.Path != "/v2/models/m/infer" {
			http.Error(w, `{"error":"no such model"}`, http.StatusNotFound)
		}
	}))
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	check(t, measure(t, "http", address, "m", 1, 16))
	r := measure(t, "http", address, "n", 1, 16)
	if r.Errors == 0 || r.Requests != 0 || !strings.Contains(r.FirstError, "404") || !strings.Contains(r.FirstError, "no such model") {
		t.Errorf("result %+v, want errors alone", r)
	}
}

// fakeServer answers with what it was sent.
type fakeServer struct {
	inference.UnimplementedGRPCInferenceServiceServer
}

func (fakeServer) ModelInfer(_ context.Context, r *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	if r.GetModelName() != "m" {
		return nil, status.Error(codes.NotFound, "no such model")
	}
	return &inference.ModelInferResponse{RawOutputContents: r.GetRawInputContents()}, nil
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	inference.RegisterGRPCInferenceServiceServer(s, fakeServer{})
	go s.Serve(listener)
	defer s.Stop()
	address := listener.Addr().String()
	check(t, measure(t, "grpc", address, "m", 1, 16))
	check(t, measure(t, "grpc", address, "m", 1, 50000)) // far more than the windows at the start
	r := measure(t, "grpc", address, "n", 1, 16)
	if r.Errors == 0 || r.Requests != 0 || !strings.Contains(r.FirstError, "no such model") {
		t.Errorf("result %+v, want errors alone", r)
	}
}

func TestParse(t *testing.T) {
	for _, bad := range [][]string{{"-shape", "1,x"}, {"-protocol", "ftp"}, {"-concurrency", "0"}} {
		if _, _, err := parse(bad); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}
