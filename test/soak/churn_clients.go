package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/admin"
	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// question is a request of which there are few, so that answers to it are cached.
type question struct {
	version int // 0: the latest
	in      []int32
}

func ask(m *reloaded, rng *rand.Rand) question {
	q := question{in: make([]int32, width*(1+rng.IntN(3)))}
	if m.adds && rng.IntN(3) == 0 {
		q.version = 1 // every load has it
	}
	key := rng.Int32N(8)
	for i := range q.in {
		q.in[i] = key*1000 + int32(i)
	}
	return q
}

func (q question) path(m *reloaded) string {
	if q.version == 0 {
		return "/v2/models/" + m.name + "/infer"
	}
	return fmt.Sprintf("/v2/models/%s/versions/%d/infer", m.name, q.version)
}

func (q question) shape() []int { return []int{len(q.in) / width, width} }

// unserved gives the error of a call back, unless the model may have been away meanwhile.
func (c *churn) unserved(m *reloaded, err error, begin, end time.Time) error {
	if m.served(begin, end) {
		return fmt.Errorf("%s, which was loaded: %w", m.name, err)
	}
	c.notes.add("calls to unloaded models")
	return nil
}

func (c *churn) checkJSON(m *reloaded, q question, got []byte, begin time.Time) error {
	a, err := checked.ReadAnswer(got)
	if err != nil {
		return err
	}
	version, err := strconv.Atoi(a.Version)
	if err != nil || len(a.Outputs) != 1 {
		return checked.Wrongf("%s: answered %.300q", m.name, got)
	}
	c.notes.add("answers checked")
	return m.check(q.in, a.Outputs[0].Data, q.version, version, begin, time.Now())
}

// askJSON asks in JSON, sometimes for classes of what is cached as a whole.
func (c *churn) askJSON(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		web := s.web()
		return func(ctx context.Context) error {
			q := ask(m, rng)
			if rng.IntN(6) == 0 {
				return c.askClasses(ctx, web, m, q)
			}
			begin := time.Now()
			_, got, err := checked.Post(ctx, web, s.url(q.path(m)), checked.JSONRequest(q.shape(), q.in))
			if err != nil {
				return c.unserved(m, err, begin, time.Now())
			}
			return c.checkJSON(m, q, got, begin)
		}, web.CloseIdleConnections
	}
}

// askClasses wants the largest element of each row, which is the last.
func (c *churn) askClasses(ctx context.Context, web *http.Client, m *reloaded, q question) error {
	body := bytes.TrimSuffix(checked.JSONRequest(q.shape(), q.in), []byte("}"))
	body = append(body, `,"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}`...)
	begin := time.Now()
	_, got, err := checked.Post(ctx, web, c.s.url(q.path(m)), body)
	if err != nil {
		return c.unserved(m, err, begin, time.Now())
	}
	var a struct{ Outputs []struct{ Data []string } }
	if err := json.Unmarshal(got, &a); err != nil || len(a.Outputs) != 1 || len(a.Outputs[0].Data) != len(q.in)/width {
		return checked.Wrongf("%s: classes %.300q", m.name, got)
	}
	var in, out []int32
	for row, class := range a.Outputs[0].Data {
		var value float64
		var index int
		if _, err := fmt.Sscanf(class, "%f:%d", &value, &index); err != nil || index != width-1 {
			return checked.Wrongf("%s: class %q, want element %d: %v", m.name, class, width-1, err)
		}
		in, out = append(in, q.in[row*width+index]), append(out, int32(value))
	}
	c.notes.add("classes checked")
	return m.check(in, out, q.version, 0, begin, time.Now())
}

func (c *churn) askBinary(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		web := s.web()
		return func(ctx context.Context) error {
			q := ask(m, rng)
			body, head := checked.BinaryRequest(len(q.in)/width, q.in)
			begin := time.Now()
			res, got, err := checked.Post(ctx, web, s.url(q.path(m)), body, checked.HeaderLength, head)
			if err != nil {
				return c.unserved(m, err, begin, time.Now())
			}
			_, tensor, err := checked.BinaryAnswer(res, got)
			if err != nil {
				return err
			}
			c.notes.add("answers checked")
			return m.check(q.in, checked.Numbers(tensor), q.version, 0, begin, time.Now())
		}, web.CloseIdleConnections
	}
}

func (q question) message(m *reloaded) *inference.ModelInferRequest {
	r := checked.Message(m.name, "INPUT0", len(q.in)/width, q.in)
	if q.version > 0 {
		r.ModelVersion = strconv.Itoa(q.version)
	}
	return r
}

func (c *churn) checkMessage(m *reloaded, q question, got *inference.ModelInferResponse, begin time.Time) error {
	version, out, err := checked.Output(got)
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	c.notes.add("answers checked")
	return m.check(q.in, out, q.version, version, begin, time.Now())
}

func (c *churn) askUnary(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		return overGRPC(s, func(ctx context.Context, client inference.GRPCInferenceServiceClient) error {
			q, begin := ask(m, rng), time.Now()
			got, err := client.ModelInfer(ctx, q.message(m))
			if err != nil {
				return c.unserved(m, err, begin, time.Now())
			}
			return c.checkMessage(m, q, got, begin)
		})
	}
}

// askStream asks some questions on a stream, and reads the answers while it asks.
func (c *churn) askStream(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		return overGRPC(s, func(ctx context.Context, client inference.GRPCInferenceServiceClient) error {
			stream, err := client.ModelStreamInfer(ctx)
			if err != nil {
				return err
			}
			begin := time.Now()
			asked := make([]question, 1+rng.IntN(10))
			for i := range asked {
				asked[i] = ask(m, rng)
				if err := stream.Send(asked[i].message(m)); err != nil {
					return err
				}
			}
			if err := stream.CloseSend(); err != nil {
				return err
			}
			for i, q := range asked {
				got, err := stream.Recv()
				if err == nil && got.ErrorMessage != "" {
					err = fmt.Errorf("answer %d of %d: %s", i, len(asked), got.ErrorMessage)
					if err := c.unserved(m, err, begin, time.Now()); err != nil {
						return err
					}
					continue
				}
				if err != nil {
					return fmt.Errorf("answer %d of %d: %w", i, len(asked), err)
				}
				if err := c.checkMessage(m, q, got.InferResponse, begin); err != nil {
					return err
				}
			}
			if _, err := stream.Recv(); err != io.EOF {
				return fmt.Errorf("the end of the stream: %v", err)
			}
			return nil
		})
	}
}

// leaveHTTP asks and leaves after some milliseconds, sometimes before all is sent.
func (c *churn) leaveHTTP(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		web := s.web()
		return func(ctx context.Context) error {
			q, begin := ask(m, rng), time.Now()
			body := checked.JSONRequest(q.shape(), q.in)
			own, cancel := context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(6*time.Millisecond))))
			defer cancel()
			if rng.IntN(4) == 0 {
				w, err := s.open(ctx, c.notes, s.http, "http/1.1")
				if err != nil {
					return err
				}
				w.send(fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", q.path(m), len(body), body[:rng.IntN(len(body)+1)]))
				<-own.Done()
				w.end()
				return nil
			}
			_, got, err := checked.Post(own, web, s.url(q.path(m)), body)
			if own.Err() != nil {
				c.notes.add("calls left")
				return nil
			}
			if err != nil {
				return c.unserved(m, err, begin, time.Now())
			}
			return c.checkJSON(m, q, got, begin)
		}, web.CloseIdleConnections
	}
}

// leaveGRPC asks and cancels after some milliseconds, or has so short a deadline.
func (c *churn) leaveGRPC(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		return overGRPC(s, func(ctx context.Context, client inference.GRPCInferenceServiceClient) error {
			q, begin, after := ask(m, rng), time.Now(), time.Duration(rng.Int64N(int64(6*time.Millisecond)))
			own, cancel := context.WithCancel(ctx)
			defer cancel()
			if rng.IntN(2) == 0 {
				var expired context.CancelFunc
				own, expired = context.WithTimeout(ctx, after)
				defer expired()
			} else {
				defer time.AfterFunc(after, cancel).Stop()
			}
			got, err := client.ModelInfer(own, q.message(m))
			// the server's clock may be a little ahead of the client's
			if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
				c.notes.add("calls left")
				return nil
			}
			if err != nil {
				return c.unserved(m, err, begin, time.Now())
			}
			return c.checkMessage(m, q, got, begin)
		})
	}
}

// countUp runs sequences on a model that is reloaded: an answer is the sum so far, or the
// sequence has ended because the model changed.
func (c *churn) countUp(s *server, rng *rand.Rand) (exchange, func()) {
	web, m := s.web(), c.tally
	return func(ctx context.Context) error {
		begin, id, sum := time.Now(), rng.Uint64()>>1+1, int32(0)
		last := 2 + rng.IntN(6)
		for i := range last + 1 {
			v := int32(rng.Uint32())
			sum += v
			body := checked.Step{ID: id, Start: i == 0, End: i == last, Value: v}.JSON()
			own, cancel := ctx, context.CancelFunc(func() {})
			if rng.IntN(20) == 0 {
				own, cancel = context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(4*time.Millisecond))))
			}
			_, got, err := checked.Post(own, web, s.url("/v2/models/tally/infer"), body)
			left := own.Err() != nil
			cancel()
			if left {
				c.notes.add("sequences left")
				return nil
			}
			if err != nil {
				if m.history.unchanged(begin, time.Now()) {
					return fmt.Errorf("step %d of sequence %d: %w", i, id, err)
				}
				c.notes.add("sequences ended by a load")
				return nil
			}
			a, err := checked.ReadAnswer(got)
			if err != nil {
				return err
			}
			if err := a.Check([]int32{sum}); err != nil {
				return fmt.Errorf("step %d of sequence %d: %w", i, id, err)
			}
		}
		c.notes.add("sequences checked")
		return nil
	}, web.CloseIdleConnections
}

// readBurst reads a decoupled model's answers, some of the time not to the end.
func (c *churn) readBurst(s *server, rng *rand.Rand) (exchange, func()) {
	return overGRPC(s, func(ctx context.Context, client inference.GRPCInferenceServiceClient) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := client.ModelStreamInfer(ctx)
		if err != nil {
			return err
		}
		begin, n := time.Now(), 1+rng.IntN(20)
		request := repeatMessage(n, uint32(rng.IntN(4)), "")
		request.ModelName = c.burst.name
		if err := stream.Send(request); err != nil {
			return err
		}
		leave := n + 1
		if rng.IntN(4) == 0 {
			leave = rng.IntN(n + 1)
		}
		for i := range n {
			if i == leave {
				c.notes.add("streams left")
				return nil
			}
			got, err := stream.Recv()
			if err == nil && got.ErrorMessage != "" {
				return c.unserved(c.burst, fmt.Errorf("answer %d of %d: %s", i, n, got.ErrorMessage), begin, time.Now())
			}
			if err != nil {
				return fmt.Errorf("answer %d of %d: %w", i, n, err)
			}
			out := got.InferResponse.GetRawOutputContents()
			if len(out) != 2 || !slices.Equal(checked.Numbers(out[0]), []int32{int32(i)}) {
				return checked.Wrongf("answer %d of %d is %v", i, n, out)
			}
		}
		c.notes.add("streams checked")
		return stream.CloseSend()
	})
}

// purge takes answers out of the cache.
func (c *churn) purge(s *server, rng *rand.Rand) (exchange, func()) {
	web := s.web()
	conn, err := s.connect()
	if err != nil {
		return func(context.Context) error { return err }, web.CloseIdleConnections
	}
	client := admin.NewAdminClient(conn)
	return func(ctx context.Context) error {
			c.notes.add("purges")
			m := []*reloaded{c.low, c.high, c.chain}[rng.IntN(3)]
			switch rng.IntN(4) {
			case 0:
				_, err := client.PurgeCache(ctx, &admin.PurgeCacheRequest{Model: m.name, Version: "1"}, grpc.WaitForReady(true))
				return err
			case 1:
				_, _, err := checked.Post(ctx, web, s.url("/v2/cache/purge"), []byte("{}"))
				return err
			}
			_, _, err := checked.Post(ctx, web, s.url("/v2/cache/purge"), fmt.Appendf(nil, `{"model":%q}`, m.name))
			return err
		}, func() {
			web.CloseIdleConnections()
			_ = conn.Close() // of no further use
		}
}

// lookAround asks what a console asks, which must always be answered.
func (c *churn) lookAround(s *server, rng *rand.Rand) (exchange, func()) {
	web := s.web()
	return func(ctx context.Context) error {
		m, begin := c.models()[rng.IntN(5)], time.Now()
		switch rng.IntN(5) {
		case 0:
			_, _, err := checked.Post(ctx, web, s.url("/v2/repository/index"), []byte("{}"))
			return err
		case 1:
			_, err := s.scrape(ctx)
			return err
		}
		path := "/v2/models/" + m.name + []string{"", "/ready", "/stats", "/config"}[rng.IntN(4)]
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(path), nil)
		if err != nil {
			return err
		}
		res, err := web.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return c.unserved(m, fmt.Errorf("%s: status %d", path, res.StatusCode), begin, time.Now())
		}
		return nil
	}, web.CloseIdleConnections
}
