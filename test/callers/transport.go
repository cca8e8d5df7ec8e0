package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// transport asks over one protocol, on connections of its own.
type transport interface {
	// ask gives the version that answered and what it made of in.
	ask(ctx context.Context, m *model, in []int32, binary bool) (version int, out []int32, err error)
	// step sends one request of a sequence, with headers that name it or without.
	step(ctx context.Context, model string, s checked.Step, headers []string) (sum []int32, err error)
	close()
}

// reasonError is a call's status and the reason in its trailing metadata.
type reasonError struct {
	reason string
	err    error
}

// Error is the status and the reason.
func (e *reasonError) Error() string { return e.reason + ": " + e.err.Error() }

// open makes a transport for one caller: http, grpc, or stream, which is gRPC with one
// ModelStreamInfer for all calls.
func open(o *options, protocol string) (transport, error) {
	if protocol == "http" {
		return &web{base: "http://" + o.address, headers: o.headers,
			client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}}, nil
	}
	conn, err := grpc.NewClient(o.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	r := &remote{conn: conn, client: inference.NewGRPCInferenceServiceClient(conn), headers: o.headers}
	if protocol == "stream" {
		return &streamed{remote: r}, nil
	}
	return r, nil
}

// web asks over HTTP/1.1.
type web struct {
	base    string
	headers []string
	client  *http.Client
}

func (w *web) ask(ctx context.Context, m *model, in []int32, binary bool) (int, []int32, error) {
	headers, body, head := w.headers, []byte(nil), ""
	if binary {
		body, head = checked.BinaryRequest(1, in)
		headers = append(headers[:len(headers):len(headers)], checked.HeaderLength, head)
	} else {
		body = checked.JSONRequest([]int{1, len(in)}, in)
	}
	res, got, err := checked.Post(ctx, w.client, w.base+m.path(), body, headers...)
	if err != nil {
		return 0, nil, err
	}
	text, tensor := got, []byte(nil)
	if binary {
		if text, tensor, err = checked.BinaryAnswer(res, got); err != nil {
			return 0, nil, err
		}
	}
	a, err := checked.ReadAnswer(text)
	if err != nil {
		return 0, nil, err
	}
	version, err := strconv.Atoi(a.Version)
	if err != nil {
		return 0, nil, checked.Wrongf("%s: answered by version %q", m.spec, a.Version)
	}
	if binary {
		return version, checked.Numbers(tensor), nil
	}
	out, err := a.Output()
	return version, out, err
}

func (w *web) step(ctx context.Context, model string, s checked.Step, headers []string) ([]int32, error) {
	url := w.base + "/v2/models/" + model + "/infer"
	_, got, err := checked.Post(ctx, w.client, url, s.JSON(), append(headers, w.headers...)...)
	if err != nil {
		return nil, err
	}
	a, err := checked.ReadAnswer(got)
	if err != nil {
		return nil, err
	}
	return a.Output()
}

func (w *web) close() { w.client.CloseIdleConnections() }

// remote asks over gRPC.
type remote struct {
	conn    *grpc.ClientConn
	client  inference.GRPCInferenceServiceClient
	headers []string
}

// call is one exchange. Routes know the model by its metadata.
func (r *remote) call(ctx context.Context, m *inference.ModelInferRequest, headers []string) (int, []int32, error) {
	pairs := append(append([]string{"x-sluice-model", m.ModelName}, headers...), r.headers...)
	if m.ModelVersion != "" {
		pairs = append(pairs, "x-sluice-model-version", m.ModelVersion)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	var trailer metadata.MD
	got, err := r.client.ModelInfer(ctx, m, grpc.Trailer(&trailer))
	if err != nil {
		e := &reasonError{err: err}
		if v := trailer.Get("x-sluice-reason"); len(v) > 0 {
			e.reason = v[0]
		}
		return 0, nil, e
	}
	return checked.Output(got)
}

func (r *remote) ask(ctx context.Context, m *model, in []int32, _ bool) (int, []int32, error) {
	return r.call(ctx, m.message(in), nil)
}

func (r *remote) step(ctx context.Context, model string, s checked.Step, headers []string) ([]int32, error) {
	_, out, err := r.call(ctx, s.Message(model), headers)
	return out, err
}

func (r *remote) close() { _ = r.conn.Close() } // what it had is abandoned

// streamed asks on a stream of gRPC, one call at a time. The stream is opened anew when it
// has failed.
type streamed struct {
	*remote
	stream inference.GRPCInferenceService_ModelStreamInferClient // nil: none
	cancel context.CancelFunc                                    // of the stream
}

func (s *streamed) call(ctx context.Context, m *inference.ModelInferRequest) (int, []int32, error) {
	if s.stream == nil {
		whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
		whole = metadata.AppendToOutgoingContext(whole, append([]string{"x-sluice-model", m.ModelName}, s.headers...)...)
		stream, err := s.client.ModelStreamInfer(whole)
		if err != nil {
			cancel()
			return 0, nil, &reasonError{err: err}
		}
		s.stream, s.cancel = stream, cancel
	}
	defer context.AfterFunc(ctx, s.cancel)() // a late answer ends the stream
	err := s.stream.Send(m)
	if err == nil || err == io.EOF { // then Recv knows why
		var got *inference.ModelStreamInferResponse
		if got, err = s.stream.Recv(); err == nil {
			if got.ErrorMessage != "" {
				return 0, nil, errors.New(got.ErrorMessage)
			}
			return checked.Output(got.InferResponse)
		}
	}
	e := &reasonError{err: err}
	if v := s.stream.Trailer().Get("x-sluice-reason"); len(v) > 0 {
		e.reason = v[0]
	}
	s.cancel()
	s.stream = nil
	return 0, nil, e
}

func (s *streamed) ask(ctx context.Context, m *model, in []int32, _ bool) (int, []int32, error) {
	return s.call(ctx, m.message(in))
}

func (s *streamed) step(ctx context.Context, model string, step checked.Step, _ []string) ([]int32, error) {
	_, out, err := s.call(ctx, step.Message(model))
	return out, err
}

func (s *streamed) close() {
	if s.stream != nil {
		s.cancel()
	}
	s.remote.close()
}
