package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"

	"github.com/sluice-serve/sluice/test/checked"
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
			v := checked.Values(rng, 1+rng.IntN(400))
			body, headers := checked.JSONRequest([]int{1, len(v)}, v), []string(nil)
			if zip {
				body, headers = zipped(body), []string{"Content-Encoding", "gzip", "Accept-Encoding", "gzip"}
			}
			res, got, err := checked.Post(ctx, c, s.url("/v2/models/"+model+"/infer"), body, headers...)
			if err != nil {
				return err
			}
			if zip {
				if e := res.Header.Get("Content-Encoding"); e != "gzip" {
					return checked.Wrongf("answered in %q", e)
				}
				z, err := gzip.NewReader(bytes.NewReader(got))
				if err != nil {
					return checked.Wrongf("no gzip: %v", err)
				}
				if got, err = io.ReadAll(z); err != nil {
					return checked.Wrongf("broken gzip: %v", err)
				}
			}
			a, err := checked.ReadAnswer(got)
			if err != nil {
				return err
			}
			return a.Check(v)
		}, c.CloseIdleConnections
	}
}

func openBinary(model string, most int, unix bool) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		c, url := s.web(), s.url("/v2/models/"+model+"/infer")
		if unix { // which speaks no TLS
			var d net.Dialer
			c.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", s.unix) }}
			url = "http://localhost/v2/models/" + model + "/infer"
		}
		return func(ctx context.Context) error {
			v := checked.Values(rng, most/2+1+rng.IntN(most/2))
			body, head := checked.BinaryRequest(1, v)
			res, got, err := checked.Post(ctx, c, url, body, checked.HeaderLength, head)
			if err != nil {
				return err
			}
			_, tensor, err := checked.BinaryAnswer(res, got)
			if err == nil && !bytes.Equal(tensor, checked.Raw(v)) {
				err = checked.Wrongf("other bytes than were sent: %d, want %d", len(tensor), 4*len(v))
			}
			return err
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
		_, got, err := checked.Post(ctx, c, s.url("/v2/models/cached/infer"), checked.JSONRequest([]int{1, len(v)}, v))
		if err != nil {
			return err
		}
		a, err := checked.ReadAnswer(got)
		if err != nil {
			return err
		}
		return a.Check(v)
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
			step := checked.Step{ID: id, Start: i == 0, End: i == last, Value: v}
			_, got, err := checked.Post(ctx, c, s.url("/v2/models/sum/infer"), step.JSON())
			if err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			a, err := checked.ReadAnswer(got)
			if err != nil {
				return err
			}
			if err := a.Check([]int32{sum}); err != nil {
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
		_, got, err := checked.Post(ctx, c, s.url("/v2/models/repeat/generate_stream"), []byte(body))
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
				return checked.Wrongf("event %d is %.200q", i, event)
			}
			if a.Error != "" {
				return errors.New(a.Error)
			}
			if a.OUT == nil || *a.OUT != 7*i {
				return checked.Wrongf("event %d is %.200q", i, event)
			}
			i++
		}
		if i != n {
			return checked.Wrongf("%d events, want %d", i, n)
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
		_, got, err := checked.Post(ctx, c, s.url("/v2/models/text/generate"), []byte(fmt.Sprintf(`{"INPUT0":%q}`, text)))
		if err != nil {
			return err
		}
		var a struct{ OUTPUT0 string }
		if err := json.Unmarshal(got, &a); err != nil || a.OUTPUT0 != text {
			return checked.Wrongf("answered %.200q, want %q", got, text)
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
		if _, _, err := checked.Post(ctx, c, s.url("/v2/repository/models/coming/load"), nil); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		v := checked.Values(rng, 10)
		_, got, err := checked.Post(ctx, c, s.url("/v2/models/coming/infer"), checked.JSONRequest([]int{len(v)}, v))
		if err != nil {
			return fmt.Errorf("infer: %w", err)
		}
		a, err := checked.ReadAnswer(got)
		if err != nil {
			return err
		}
		if err := a.Check(v); err != nil {
			return err
		}
		if _, _, err := checked.Post(ctx, c, s.url("/v2/repository/models/coming/unload"), nil); err != nil {
			return fmt.Errorf("unload: %w", err)
		}
		return nil
	}, c.CloseIdleConnections
}
