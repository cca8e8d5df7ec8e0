package httpapi

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// answering makes the model answer with outputs of the memory's, which counts as long as it is held.
func answering(f *fake, memory *atomic.Int64, outputs ...infer.Tensor) {
	f.infer = func(_ context.Context, req *infer.Request, send infer.SendFunc) error {
		memory.Add(1)
		return send(&infer.Response{ID: req.ID, Model: "m", Version: "1", Final: true, Outputs: append([]infer.Tensor(nil), outputs...),
			Memory: infer.NewBuffer(nil, func(*infer.Buffer) { memory.Add(-1) })})
	}
}

// tensors are an output of each datatype that JSON has a form for, together larger than largeBody.
func tensors() (all []infer.Tensor) {
	for d := infer.Bool; d <= infer.Bytes; d++ {
		if !json.HasForm(d) {
			continue
		}
		t := infer.Tensor{Name: "O_" + d.String(), Datatype: d, Shape: []int64{2, 5000}}
		for i := range 10_000 {
			if d == infer.Bytes {
				t.Data = append(binary.LittleEndian.AppendUint32(t.Data, uint32(i%40)), bytes.Repeat([]byte{byte(i)}, i%40)...)
				continue
			}
			for range d.Size() {
				t.Data = append(t.Data, byte(i*i>>3))
			}
		}
		all = append(all, t)
	}
	return all
}

// wholeJSON is what the outputs are in JSON, by a response that is encoded at once.
func wholeJSON(t *testing.T, outputs []infer.Tensor) string {
	t.Helper()
	b := []byte(`{"model_name":"m","model_version":"1","outputs":[`)
	for i := range outputs {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendTensorData(appendTensorHead(b, &outputs[i]), &outputs[i]); err != nil {
			t.Fatal(err)
		}
	}
	return string(b) + "]}"
}

const anyRequest = `{"inputs":[{"name":"I","shape":[1],"datatype":"INT32","data":[1]}]}`

// post asks model m for anything.
func post(t *testing.T, nc net.Conn, version string) {
	t.Helper()
	_, err := fmt.Fprintf(nc, "POST /v2/models/m/infer HTTP/%s\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", version, len(anyRequest), anyRequest)
	if err != nil {
		t.Fatal(err)
	}
}

// Large JSON is the same text over all transports, compressed or not, and nothing is held behind it.
func TestLargeJSON(t *testing.T) {
	f, held := &fake{responses: &infer.Budget{Limit: 4 << 20}}, &atomic.Int64{}
	var sent, ended atomic.Int64
	f.ended = func(end *infer.End) { sent.Store(end.Sent); ended.Add(1) }
	outputs := tensors()
	answering(f, held, outputs...)
	want := wholeJSON(t, outputs)
	if len(want) < 2*largeBody {
		t.Fatalf("%d bytes are not large", len(want))
	}
	plain, secure := start(t, f, Config{}), start(t, f, Config{TLS: certificate(t)})
	var h1, h2 http.Protocols
	h1.SetHTTP1(true)
	h2.SetUnencryptedHTTP2(true)
	h2.SetHTTP2(true)
	calls := int64(0)
	for name, c := range map[string]struct {
		url       string
		protocols *http.Protocols
	}{"HTTP/1.1": {"http://" + plain.Addrs()[0].String(), &h1}, "h2c": {"http://" + plain.Addrs()[0].String(), &h2},
		"TLS": {"https://" + secure.Addrs()[0].String(), &h1}, "TLS h2": {"https://" + secure.Addrs()[0].String(), &h2}} {
		cl := client(t, func(tr *http.Transport) {
			tr.Protocols, tr.TLSClientConfig = c.protocols, &tls.Config{InsecureSkipVerify: true}
		})
		for _, encoding := range []string{"", "", "gzip", "deflate"} {
			req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+"/v2/models/m/infer", strings.NewReader(anyRequest))
			if err != nil {
				t.Fatal(err)
			}
			if encoding != "" {
				req.Header.Set("Accept-Encoding", encoding)
			}
			resp, err := cl.Do(req)
			if err != nil {
				t.Fatalf("%s %s: %v", name, encoding, err)
			}
			raw, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Encoding") != encoding || resp.Header.Get("Content-Type") != typeJSON {
				t.Fatalf("%s %s: %v, %v", name, encoding, err, resp)
			}
			if got := unpacked(t, encoding, raw); got != want {
				t.Errorf("%s %s: %d bytes, want %d: they differ", name, encoding, len(got), len(want))
			}
			calls++
			eventually(t, "the end of the call", func() bool { return ended.Load() == calls })
			if sent.Load() != int64(len(raw)) || held.Load() != 0 || f.responses.Used() != 0 {
				t.Errorf("%s %s: sent %d of %d bytes, %d responses and %d bytes held", name, encoding, sent.Load(), len(raw), held.Load(),
					f.responses.Used())
			}
		}
	}
}

// unpacked decompresses a body.
func unpacked(t *testing.T, encoding string, raw []byte) string {
	t.Helper()
	var r io.Reader = bytes.NewReader(raw)
	var err error
	switch encoding {
	case "gzip":
		r, err = gzip.NewReader(r)
	case "deflate":
		r, err = zlib.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// HTTP/1.0 knows no chunks: the end of the connection is that of the body.
func TestLargeJSONOverHTTP10(t *testing.T) {
	f, held := &fake{}, &atomic.Int64{}
	outputs := tensors()
	answering(f, held, outputs...)
	s := start(t, f, Config{})
	nc, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	post(t, nc, "1.0")
	all, err := io.ReadAll(nc)
	if head, body, _ := strings.Cut(string(all), "\r\n\r\n"); err != nil || body != wholeJSON(t, outputs) || strings.Contains(head, "chunked") {
		t.Errorf("%v: %s, and %d bytes", err, head, len(body))
	}
}

// Clients that want JSON of much and read nothing make the server hold a piece for each, and not the text.
func TestUnreadJSONIsNotHeld(t *testing.T) {
	f, held := &fake{responses: &infer.Budget{Limit: 64 << 20}}, &atomic.Int64{}
	answering(f, held, infer.Tensor{Name: "O", Datatype: infer.Int8, Shape: []int64{8 << 20}, Data: make([]byte, 8<<20)})
	s := start(t, f, Config{})
	const clients = 6
	for range clients {
		nc, err := net.Dial("tcp", s.Addrs()[0].String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		post(t, nc, "1.1")
	}
	eventually(t, "all responses are held", func() bool { return held.Load() == clients && f.responses.Used() >= clients*pieceSize })
	if used := f.responses.Used(); used > clients*4*pieceSize {
		t.Errorf("%d bytes are held for %d clients", used, clients)
	}
	if f.closed.Load() != 0 {
		t.Errorf("%d calls have ended", f.closed.Load())
	}
}

// What a reply holds counts, and is refused where there is no room.
func TestRepliesAreCounted(t *testing.T) {
	bytes := func(n int64) infer.Tensor {
		return infer.Tensor{Name: "O", Datatype: infer.Uint8, Shape: []int64{n}, Data: make([]byte, n)}
	}
	small, whole, large := bytes(100), bytes(50_000), bytes(1<<20)
	for name, c := range map[string]struct {
		output       infer.Tensor
		path, accept string
		limit        int64
		status       int
		used         int64 // at least
	}{
		"small":             {small, "infer", "", 1, 200, 0},
		"whole":             {whole, "infer", "", 1 << 20, 200, 100_000},
		"whole, no room":    {whole, "infer", "", 50_000, 503, 0},
		"pieces":            {large, "infer", "", 1 << 20, 200, pieceSize},
		"pieces, no room":   {large, "infer", "", 10_000, 503, 0},
		"compressed pieces": {large, "infer", "gzip", 1 << 20, 200, compressorSize},
		"generate":          {whole, "generate", "", 1 << 20, 200, 100_000},
		"generate, no room": {large, "generate", "", 1 << 20, 503, 0},
	} {
		f, held := &fake{responses: &infer.Budget{Limit: c.limit}}, &atomic.Int64{}
		counting(f, false, held, nil)
		f.meta.Inputs[0].Name = "I"
		answering(f, held, c.output)
		a, ask := newFakeAPI(f, APIConfig{}), anyRequest
		if c.path == "generate" {
			ask = `{"I":1}`
		}
		var r Reply
		a.Serve(t.Context(), &Call{Method: "POST", Path: "/v2/models/two/" + c.path, Header: header{"Accept-Encoding": c.accept},
			Body: strings.NewReader(ask), Length: int64(len(ask))}, &r)
		if r.Status != c.status || f.responses.Used() < c.used || c.used == 0 && f.responses.Used() > 0 {
			t.Errorf("%s: status %d, %d bytes counted; want %d, at least %d: %s", name, r.Status, f.responses.Used(), c.status, c.used, r.Chunks)
		}
		r.Release()
		if f.responses.Used() != 0 || held.Load() != 0 || f.closed.Load() != 1 {
			t.Errorf("%s: %d bytes, %d responses held, %d calls ended after it was written", name, f.responses.Used(), held.Load(), f.closed.Load())
		}
	}
}

// A list that nobody reads counts as an inference's answer does.
func TestControlAnswersAreCounted(t *testing.T) {
	f := &fake{responses: &infer.Budget{Limit: 1 << 20}, index: &inference.RepositoryIndexResponse{}}
	for range 500 {
		f.index.Models = append(f.index.Models, &inference.RepositoryIndexResponse_ModelIndex{Name: strings.Repeat("n", 50)})
	}
	a := newFakeAPI(f, APIConfig{})
	for _, c := range []struct {
		limit  int64
		status int
		least  int64
	}{{1 << 20, 200, 20_000}, {10_000, 503, 0}} {
		f.responses.Limit = c.limit
		var r Reply
		a.Serve(t.Context(), &Call{Method: "POST", Path: "/v2/repository/index", Header: header{}, Body: strings.NewReader("")}, &r)
		if r.Status != c.status || f.responses.Used() < c.least {
			t.Errorf("limit %d: status %d, %d bytes counted; want %d, at least %d", c.limit, r.Status, f.responses.Used(), c.status, c.least)
		}
		r.Release()
		if f.responses.Used() != 0 {
			t.Errorf("%d bytes counted after it was written", f.responses.Used())
		}
	}
}

// While memory is scarce net/http's clients that take nothing are cut off, and slow ones are not.
func TestLargeWritesAreCutOff(t *testing.T) {
	f, held := &fake{}, &atomic.Int64{}
	answering(f, held, infer.Tensor{Name: "O", Datatype: infer.Int8, Shape: []int64{32 << 20}, Data: make([]byte, 32<<20)})
	s := start(t, f, Config{TLS: certificate(t)})
	dial := func() net.Conn {
		nc, err := tls.Dial("tcp", s.Addrs()[0].String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		post(t, nc, "1.1")
		return nc
	}
	idle, slow := dial(), dial()
	large := &s.handler.large
	eventually(t, "both are written", func() bool { return held.Load() == 2 && len(large.stuck(infer.Now(), 0)) == 2 })
	over := make(chan struct{})
	reads := make(chan error, 1)
	go func() { // 64 MB would last for 20 s
		var err error
		for err == nil {
			select {
			case <-over:
				reads <- nil
				return
			case <-time.After(5 * time.Millisecond):
				_, err = io.CopyN(io.Discard, slow, 16<<10)
			}
		}
		reads <- err
	}()
	if n := large.drop(infer.Now(), 0, func() bool { return false }); n != 0 {
		t.Errorf("%d were cut off with memory to spare", n)
	}
	const patience = int64(3 * time.Second)
	eventually(t, "one is cut off", func() bool { return large.drop(infer.Now(), patience, func() bool { return true }) == 1 })
	eventually(t, "its memory is back", func() bool { return held.Load() == 1 })
	if _, err := io.Copy(io.Discard, idle); err == nil {
		t.Error("the answer that was cut off ends as if it were whole")
	}
	close(over)
	if err := <-reads; err != nil {
		t.Errorf("the slow one: %v", err)
	}
}

// Answers of a stream that wait for their client count, and end their request where there is no room.
func TestStreamedAnswersAreCounted(t *testing.T) {
	f, sent, ended := &fake{responses: &infer.Budget{Limit: 1 << 20}}, &atomic.Int64{}, make(chan error, 1)
	counting(f, true, sent, ended)
	s := start(t, f, Config{})
	nc, err := net.Dial("tcp", s.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(nc, "POST /v2/models/two/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n{\"X\":1}"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if infer.ReasonOf(err) != infer.ReasonMemory {
			t.Errorf("the request ended with %v, want reason %s", err, infer.ReasonMemory)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the request goes on")
	}
	if f.responses.Used() == 0 {
		t.Error("nothing is counted while answers wait")
	}
	_ = nc.Close()
	eventually(t, "all is given back", func() bool { return f.responses.Used() == 0 })
}
