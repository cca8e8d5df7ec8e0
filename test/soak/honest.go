package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// honest is a client that does one thing again and again and checks what it gets.
type honest struct {
	name string
	// open makes one client; each call of what it gives is one exchange, and must be
	// answered rightly.
	open func(s *server, rng *rand.Rand) (exchange, func())
	// frail says that a killed worker takes the exchange with it: what is kept in a worker,
	// or was half answered, can't be asked for again.
	frail bool
}

// exchange is one exchange of a client.
type exchange func(ctx context.Context) error

// wrong is an answer that is not the one that was due: no killed worker excuses it.
type wrong struct{ text string }

// Error is error's.
func (w *wrong) Error() string { return w.text }

func wrongf(format string, args ...any) error { return &wrong{fmt.Sprintf(format, args...)} }

// honestClients are all kinds of them.
func honestClients() []honest {
	return []honest{
		{name: "http-json", open: openJSON("echo", false)},
		{name: "http-json-gzip", open: openJSON("echo", true)},
		{name: "http-binary", open: openBinary("echo", 20000, false)},
		{name: "http-binary-large", open: openBinary("echo", 300000, false)},
		{name: "http-unix", open: openBinary("echo", 5000, true)},
		{name: "http-cached", open: openCached},
		{name: "http-sequence", open: openSequence, frail: true},
		{name: "http-events", open: openEvents, frail: true},
		{name: "http-generate", open: openGenerate},
		{name: "http-load", open: openLoading, frail: true},
		{name: "http-region", open: openRegion, frail: true},
		{name: "grpc-unary", open: openUnary(3000)},
		{name: "grpc-unary-large", open: openUnary(300000)},
		{name: "grpc-stream", open: openStreaming},
		{name: "grpc-decoupled", open: openDecoupled, frail: true},
	}
}

// values are n random integers.
func values(rng *rand.Rand, n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(rng.Uint32())
	}
	return v
}

func raw(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// post is one HTTP exchange; a status other than 200 is an error.
func post(ctx context.Context, c *http.Client, url string, body []byte, headers ...string) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", res.StatusCode, got)
	}
	return res, got, err
}

// answer is an answer of the v2 protocol.
type answer struct {
	Outputs []struct {
		Name  string
		Shape []int64
		Data  []int32
	}
}

func (a *answer) check(want []int32) error {
	if len(a.Outputs) != 1 || !slices.Equal(a.Outputs[0].Data, want) {
		return wrongf("answered %.300s, want %.300s", fmt.Sprint(a.Outputs), fmt.Sprint(want))
	}
	return nil
}

func jsonRequest(shape []int, v []int32) []byte {
	body, err := json.Marshal(map[string]any{"inputs": []any{map[string]any{"name": "INPUT0", "shape": shape, "datatype": "INT32", "data": v}}})
	if err != nil {
		panic(err) // there is nothing in it that JSON lacks
	}
	return body
}

func zipped(body []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(body); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func openJSON(model string, zip bool) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		c := s.web()
		return func(ctx context.Context) error {
			v := values(rng, 1+rng.IntN(400))
			body, headers := jsonRequest([]int{1, len(v)}, v), []string(nil)
			if zip {
				body, headers = zipped(body), []string{"Content-Encoding", "gzip", "Accept-Encoding", "gzip"}
			}
			res, got, err := post(ctx, c, s.url("/v2/models/"+model+"/infer"), body, headers...)
			if err != nil {
				return err
			}
			if zip {
				if e := res.Header.Get("Content-Encoding"); e != "gzip" {
					return wrongf("answered in %q", e)
				}
				z, err := gzip.NewReader(bytes.NewReader(got))
				if err != nil {
					return wrongf("no gzip: %v", err)
				}
				if got, err = io.ReadAll(z); err != nil {
					return wrongf("broken gzip: %v", err)
				}
			}
			var a answer
			if err := json.Unmarshal(got, &a); err != nil {
				return wrongf("no JSON: %v", err)
			}
			return a.check(v)
		}, c.CloseIdleConnections
	}
}

// binaryRequest is a body of binary tensors, and the length of its JSON.
func binaryRequest(v []int32) (body []byte, head string) {
	text := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"INT32","parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`, len(v), 4*len(v))
	return append([]byte(text), raw(v)...), strconv.Itoa(len(text))
}

const headerLength = "Inference-Header-Content-Length"

func openBinary(model string, most int, unix bool) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		c, url := s.web(), s.url("/v2/models/"+model+"/infer")
		if unix { // which speaks no TLS
			var d net.Dialer
			c.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", s.unix) }}
			url = "http://localhost/v2/models/" + model + "/infer"
		}
		return func(ctx context.Context) error {
			v := values(rng, most/2+1+rng.IntN(most/2))
			body, head := binaryRequest(v)
			res, got, err := post(ctx, c, url, body, headerLength, head)
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(res.Header.Get(headerLength))
			if err != nil || n > len(got) {
				return wrongf("header length %q of %d bytes", res.Header.Get(headerLength), len(got))
			}
			if !bytes.Equal(got[n:], raw(v)) {
				return wrongf("other bytes than were sent: %d, want %d", len(got)-n, 4*len(v))
			}
			return nil
		}, c.CloseIdleConnections
	}
}

// openCached asks for few things, so that most answers were kept.
func openCached(s *server, rng *rand.Rand) (exchange, func()) {
	c := s.web()
	return func(ctx context.Context) error {
		key := rng.IntN(200)
		v := make([]int32, 64)
		for i := range v {
			v[i] = int32(key*1000 + i)
		}
		_, got, err := post(ctx, c, s.url("/v2/models/cached/infer"), jsonRequest([]int{1, len(v)}, v))
		if err != nil {
			return err
		}
		var a answer
		if err := json.Unmarshal(got, &a); err != nil {
			return wrongf("no JSON: %v", err)
		}
		return a.check(v)
	}, c.CloseIdleConnections
}

// openSequence runs whole sequences: each answer is the sum so far.
func openSequence(s *server, rng *rand.Rand) (exchange, func()) {
	c := s.web()
	return func(ctx context.Context) error {
		id, sum := rng.Uint64()>>1+1, int32(0)
		last := 3 + rng.IntN(8)
		for i := range last + 1 {
			v := int32(rng.Uint32())
			sum += v
			body := fmt.Sprintf(`{"parameters":{"sequence_id":%d,"sequence_start":%t,"sequence_end":%t},"inputs":[{"name":"VALUE","shape":[1,1],"datatype":"INT32","data":[%d]}]}`,
				id, i == 0, i == last, v)
			_, got, err := post(ctx, c, s.url("/v2/models/sum/infer"), []byte(body))
			if err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			var a answer
			if err := json.Unmarshal(got, &a); err != nil {
				return wrongf("no JSON: %v", err)
			}
			if err := a.check([]int32{sum}); err != nil {
				return fmt.Errorf("step %d of sequence %d: %w", i, id, err)
			}
		}
		return nil
	}, c.CloseIdleConnections
}

// openEvents reads a decoupled model's answers as events.
func openEvents(s *server, rng *rand.Rand) (exchange, func()) {
	c := s.web()
	return func(ctx context.Context) error {
		n := 1 + rng.IntN(20)
		body := fmt.Sprintf(`{"IN":%s,"DELAY":%s,"WAIT":0}`, list(n, func(i int) int { return 7 * i }), list(n, func(int) int { return rng.IntN(3) }))
		_, got, err := post(ctx, c, s.url("/v2/models/repeat/generate_stream"), []byte(body))
		if err != nil {
			return err
		}
		i := 0
		for event := range strings.SplitSeq(strings.TrimSpace(string(got)), "\n\n") {
			data, ok := strings.CutPrefix(event, "data: ")
			var a struct {
				OUT   *int
				Error string
			}
			if err := json.Unmarshal([]byte(data), &a); !ok || err != nil {
				return wrongf("event %d is %.200q", i, event)
			}
			if a.Error != "" {
				return errors.New(a.Error)
			}
			if a.OUT == nil || *a.OUT != 7*i {
				return wrongf("event %d is %.200q", i, event)
			}
			i++
		}
		if i != n {
			return wrongf("%d events, want %d", i, n)
		}
		return nil
	}, c.CloseIdleConnections
}

func list(n int, value func(int) int) string {
	v := make([]int, n)
	for i := range v {
		v[i] = value(i)
	}
	return strings.ReplaceAll(fmt.Sprint(v), " ", ",")
}

func openGenerate(s *server, rng *rand.Rand) (exchange, func()) {
	c := s.web()
	return func(ctx context.Context) error {
		text := fmt.Sprintf("words %d \u2713", rng.Uint64())
		_, got, err := post(ctx, c, s.url("/v2/models/text/generate"), []byte(fmt.Sprintf(`{"INPUT0":%q}`, text)))
		if err != nil {
			return err
		}
		var a struct{ OUTPUT0 string }
		if err := json.Unmarshal(got, &a); err != nil || a.OUTPUT0 != text {
			return wrongf("answered %.200q, want %q", got, text)
		}
		return nil
	}, c.CloseIdleConnections
}

// openLoading loads a model, uses it, and unloads it.
func openLoading(s *server, rng *rand.Rand) (exchange, func()) {
	c := s.web()
	return func(ctx context.Context) error {
		if !pause(ctx, 200*1e6) {
			return ctx.Err()
		}
		if _, _, err := post(ctx, c, s.url("/v2/repository/models/coming/load"), nil); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		v := values(rng, 10)
		_, got, err := post(ctx, c, s.url("/v2/models/coming/infer"), jsonRequest([]int{len(v)}, v))
		if err != nil {
			return fmt.Errorf("infer: %w", err)
		}
		var a answer
		if err := json.Unmarshal(got, &a); err != nil {
			return wrongf("no JSON: %v", err)
		}
		if err := a.check(v); err != nil {
			return err
		}
		if _, _, err := post(ctx, c, s.url("/v2/repository/models/coming/unload"), nil); err != nil {
			return fmt.Errorf("unload: %w", err)
		}
		return nil
	}, c.CloseIdleConnections
}
