package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/inference"
)

// oneAsked is a request of TestNothingIsMixedUp: rows of the one number n, so that its answer
// tells whose it is.
type oneAsked struct {
	model, id string
	shape     []int64
	raw       []byte
}

// ask draws a request out of few, so that most of them come again, also at the same time.
func ask(draw *rand.Rand, id string) oneAsked {
	n := draw.IntN(12)
	rows, width := 1+n%3, []int{1, 16, 500, 5000}[n%4]
	raw := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, uint32(n<<16)), rows*width)
	return oneAsked{model: []string{"id", "kept"}[draw.IntN(2)], id: id, shape: []int64{int64(rows), int64(width)}, raw: raw}
}

func (q *oneAsked) check(t *testing.T, id, model string, shape []int64, raw []byte) {
	if id != q.id || model != q.model || fmt.Sprint(shape) != fmt.Sprint(q.shape) || !bytes.Equal(raw, q.raw) {
		t.Errorf("asked %q of %q with %v, %d bytes %.8x; got %q of %q with %v, %d bytes %.8x", q.id, q.model, q.shape, len(q.raw), q.raw, id, model,
			shape, len(raw), raw)
	}
}

// overGRPC makes one call, of which some end early; false: this one did.
func (q *oneAsked) overGRPC(ctx context.Context, t *testing.T, client inference.GRPCInferenceServiceClient) bool {
	r, err := client.ModelInfer(ctx, &inference.ModelInferRequest{ModelName: q.model, Id: q.id, RawInputContents: [][]byte{q.raw},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: q.shape}}})
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
		return false
	}
	if err != nil || len(r.Outputs) != 1 || len(r.RawOutputContents) != 1 {
		t.Errorf("%q of %q: %v, %v", q.id, q.model, r, err)
		return false
	}
	q.check(t, r.Id, r.ModelName, r.Outputs[0].Shape, r.RawOutputContents[0])
	return true
}

// overHTTP is overGRPC over HTTP, with an answer in JSON or binary.
func (q *oneAsked) overHTTP(ctx context.Context, t *testing.T, client *http.Client, port int, binaryOut bool) bool {
	head := fmt.Sprintf(`{"id":%q,"inputs":[{"name":"INPUT0","shape":[%d,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],`+
		`"parameters":{"binary_data_output":%v}}`, q.id, q.shape[0], q.shape[1], len(q.raw), binaryOut)
	r, err := http.NewRequestWithContext(ctx, "POST", fmt.Sprintf("http://127.0.0.1:%d/v2/models/%s/infer", port, q.model),
		bytes.NewReader(append([]byte(head), q.raw...)))
	if err != nil {
		t.Error(err)
		return false
	}
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	answer, err := client.Do(r)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(answer.Body)
		_ = answer.Body.Close()
	}
	if err != nil && ctx.Err() != nil || err == nil && answer.StatusCode != 200 && ctx.Err() != nil {
		return false
	}
	if err != nil || answer.StatusCode != 200 {
		t.Errorf("%q of %q: %v, %.200q", q.id, q.model, err, body)
		return false
	}
	var raw []byte
	if n, err := strconv.Atoi(answer.Header.Get("Inference-Header-Content-Length")); err == nil {
		body, raw = body[:n], body[n:]
	}
	var said struct {
		ID      string `json:"id"`
		Model   string `json:"model_name"`
		Outputs []struct {
			Shape []int64   `json:"shape"`
			Data  []float32 `json:"data"`
		} `json:"outputs"`
	}
	if err := json.Unmarshal(body, &said); err != nil || len(said.Outputs) != 1 {
		t.Errorf("%q of %q: %v, %.200q", q.id, q.model, err, body)
		return false
	}
	if out := said.Outputs[0].Data; !binaryOut {
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, out); err != nil {
			t.Error(err)
		}
		raw = b.Bytes()
	}
	q.check(t, said.ID, said.Model, said.Outputs[0].Shape, raw)
	return true
}

// TestNothingIsMixedUp has callers over both protocols ask two models, one with a response
// cache, for few different things at a time; some of them leave early. Whatever memory is used
// again below, each hears his own answer.
func TestNothingIsMixedUp(t *testing.T) {
	_, p := startPath(t)
	var wg sync.WaitGroup
	var served atomic.Int64
	const callers, calls = 8, 60
	for i := range 2 {
		cc, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", p.GRPC), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cc.Close() })
		client, transport := inference.NewGRPCInferenceServiceClient(cc), &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		web := &http.Client{Transport: transport}
		for k := range callers {
			draw := rand.New(rand.NewPCG(uint64(i), uint64(k)))
			wg.Go(func() {
				for n := range calls {
					q := ask(draw, fmt.Sprintf("%d-%d-%d", i, k, n))
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if draw.IntN(6) == 0 {
						cancel()
						ctx, cancel = context.WithTimeout(t.Context(), time.Duration(draw.IntN(5000))*time.Microsecond)
					}
					ok := false
					if k%2 == 0 {
						ok = q.overGRPC(ctx, t, client)
					} else {
						ok = q.overHTTP(ctx, t, web, p.HTTP, draw.IntN(2) == 0)
					}
					cancel()
					if ok {
						served.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := served.Load(); n < callers*calls {
		t.Errorf("%d calls of %d were served", n, 2*callers*calls)
	}
}
