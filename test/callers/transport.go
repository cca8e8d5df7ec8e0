package main

import (
	"context"
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

// open makes a transport for one caller.
func open(o *options, protocol string) (transport, error) {
	if protocol == "http" {
		return &web{base: "http://" + o.address, headers: o.headers,
			client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}}, nil
	}
	conn, err := grpc.NewClient(o.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &remote{conn: conn, client: inference.NewGRPCInferenceServiceClient(conn), headers: o.headers}, nil
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
	message := checked.Message(m.name, "INPUT0", 1, in)
	message.ModelVersion = m.version
	return r.call(ctx, message, nil)
}

func (r *remote) step(ctx context.Context, model string, s checked.Step, headers []string) ([]int32, error) {
	_, out, err := r.call(ctx, s.Message(model), headers)
	return out, err
}

func (r *remote) close() { _ = r.conn.Close() } // what it had is abandoned
