package httpapi

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// counting is a decoupled model that answers X times, or for ever.
func counting(f *fake, forever bool, sent *atomic.Int64, ended chan<- error) {
	f.meta = &inference.ModelMetadataResponse{Inputs: []*inference.ModelMetadataResponse_TensorMetadata{{Name: "X", Datatype: "INT32", Shape: []int64{1}}}}
	f.infer = func(ctx context.Context, req *infer.Request, send infer.SendFunc) (err error) {
		defer func() {
			if ended != nil {
				ended <- err
			}
		}()
		req.Decoupled, req.Times.QueueStart = true, 1
		n := int(binary.LittleEndian.Uint32(req.Inputs[0].Data))
		for i := 0; forever || i < n; i++ {
			if err := ctx.Err(); err != nil {
				return err
			}
			data := make([]byte, 4+20000)
			binary.LittleEndian.PutUint32(data, 20000)
			copy(data[4:], strings.Repeat("y", 20000))
			sent.Add(20000)
			if err := send(&infer.Response{ID: req.ID, Model: req.Model, Version: "1", Outputs: []infer.Tensor{{Name: "T", Datatype: infer.Bytes,
				Shape: []int64{1}, Data: data}}}); err != nil {
				return err
			}
		}
		if n == 7 {
			return infer.Errorf(infer.Internal, "seven")
		}
		return send(&infer.Response{Final: true})
	}
}

func postTo(t *testing.T, addr net.Addr, path, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr.String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestStreamedAnswers(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	f, sent := &fake{}, &atomic.Int64{}
	counting(f, false, sent, nil)
	s := start(t, f, Config{})
	infer := `{"inputs":[{"name":"X","shape":[1],"datatype":"INT32","data":[%d]}]}`
	for _, tc := range []struct {
		name, path, body, accept string
		status, answers          int
		has                      string
	}{
		{"events", "generate_stream", `{"X":3}`, "", 200, 3, "data: {\"T\":\"yyy"},
		{"none", "generate_stream", `{"X":0}`, "", 200, 0, ""},
		{"error at the end", "generate_stream", `{"X":7}`, "", 200, 8, "data: {\"error\":\"seven\"}\n\n"},
		{"one", "generate", `{"X":1}`, "", 200, 0, `{"T":"yyy`},
		{"more than one", "generate", `{"X":2}`, "", 400, 0, "exactly 1 response"},
		{"less than one", "generate", `{"X":0}`, "", 400, 0, "exactly 1 response"},
		{"infer as events", "infer", fmt.Sprintf(infer, 2), "text/html, text/event-stream;q=1", 200, 2, `"triton_final_response":false`},
		{"infer as lines", "infer", fmt.Sprintf(infer, 2), "application/x-ndjson", 200, 0, `"outputs":[{"name":"T"`},
		{"refused before", "generate_stream", `{"X":"a"}`, "", 500, 0, `{"error":"Unable to parse 'data'`},
		{"compressed", "generate_stream", `x`, "", 400, 0, "Unsupported content-encoding"},
	} {
		header := []string{"Accept", tc.accept}
		if tc.name == "compressed" {
			header = append(header, "Content-Encoding", "gzip")
		}
		resp := postTo(t, s.Addrs()[0], "/v2/models/two/"+tc.path, tc.body, header...)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != tc.status || strings.Count(string(body), "data: {") != tc.answers || !strings.Contains(string(body), tc.has) {
			t.Errorf("%s: status %d, %v, %d bytes beginning %.90q; want status %d, %d events and %q", tc.name, resp.StatusCode, err, len(body), body,
				tc.status, tc.answers, tc.has)
		}
	}
	eventually(t, "calls closed, memory back", func() bool { return f.opened.Load() == f.closed.Load() && f.held.Load() == 0 })
}

// Whoever takes nothing has his request ended once so much waits.
func TestStreamToSlowClient(t *testing.T) {
	f, sent, ended := &fake{}, &atomic.Int64{}, make(chan error, 1)
	counting(f, true, sent, ended)
	s := start(t, f, Config{})
	c, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "POST /v2/models/two/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{\"X\":1}"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if infer.ReasonOf(err) != infer.ReasonSlowClient {
			t.Errorf("the request ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the request goes on")
	}
	if n := sent.Load(); n > 4*maxStreamed {
		t.Errorf("%d bytes were made, want about %d", n, maxStreamed)
	}
}

// A client that goes away ends its request.
func TestStreamClientLeaves(t *testing.T) {
	f, ended := &fake{}, make(chan error, 1)
	counting(f, false, &atomic.Int64{}, nil)
	one := f.infer
	f.infer = func(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
		if err := one(ctx, req, func(r *infer.Response) error {
			if r.Final {
				return nil
			}
			return send(r)
		}); err != nil {
			return err
		}
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	s := start(t, f, Config{})
	c, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST /v2/models/two/generate_stream HTTP/1.1\r\nHost: x\r\nX-Sluice-Heartbeat: 0.1\r\nContent-Length: 7\r\n\r\n{\"X\":1}"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReaderSize(resp.Body, 64<<10)
	for {
		line, err := events.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == ":\n" { // a heartbeat
			break
		}
	}
	_ = c.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the request goes on")
	}
	eventually(t, "the call is closed", func() bool { return f.opened.Load() == f.closed.Load() })
}

// TestFit holds shapes against what the original gave an input.
func TestFit(t *testing.T) {
	for _, tc := range []struct {
		shape []int64
		count int64
		want  string
	}{
		{[]int64{-1, -1}, 3, "[1 3] true"}, {[]int64{-1, 2}, 4, "[2 2] true"}, {[]int64{-1, 2}, 3, "[] false"}, {[]int64{2, -1}, 0, "[2 0] true"},
		{[]int64{-1, 2, -1}, 4, "[1 2 2] true"}, {[]int64{1}, 2, "[] false"}, {[]int64{2, 2}, 4, "[2 2] true"}, {nil, 1, "[] true"}, {nil, 2, "[] false"},
	} {
		shape, ok := fit(nil, tc.shape, tc.count)
		if got := fmt.Sprint(shape, ok); got != tc.want {
			t.Errorf("%d elements of %v: %s, want %s", tc.count, tc.shape, got, tc.want)
		}
	}
}

// FuzzGeneration: whatever the document, the decoder neither fails nor reads beyond what
// the shapes say.
func FuzzGeneration(f *testing.F) {
	for _, seed := range []string{`{"X":1}`, `{"X":[1,[2]],"id":"a","parameters":{"Y":"b","z":1.5}}`, `{"X":`, `[]`, `{"Y":["a","b"],"Y":1}`, `{"parameters":3}`} {
		f.Add(seed)
	}
	inputs := modelInputs{{Name: "X", Datatype: "INT32", Shape: []int64{-1, 2}}, {Name: "Y", Datatype: "BYTES", Shape: []int64{-1}}}
	f.Fuzz(func(t *testing.T, doc string) {
		var d decoder
		if d.generation([]byte(doc), inputs) != nil {
			return
		}
		var m message
		d.fill(&m, string(d.text))
		for i, in := range m.req.Inputs {
			size, err := infer.ByteSize(in.Datatype, in.Shape)
			if got := int64(d.inputs[i].data.to - d.inputs[i].data.from); err != nil || size >= 0 && size != got {
				t.Fatalf("input %s of shape %v has %d bytes, %v", in.Name, in.Shape, got, err)
			}
		}
	})
}

// eventually polls until ok or the deadline.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10s", what)
		}
	}
}
