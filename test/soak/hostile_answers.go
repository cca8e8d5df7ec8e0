package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/test/checked"
)

// largeAnswer is the size of an INT8 tensor, of which each byte is up to five in JSON.
const largeAnswer = 2 << 20

// classified is the size of a tensor that is answered as classes: 40 bytes of text for
// each 8.
const classified = 4 << 20

// attacksWithAnswers ask for answers that are many times what was sent.
func attacksWithAnswers() []attack {
	return []attack{
		{name: "classes-http-binary", run: classesHTTP(true)},
		{name: "classes-http-json", run: classesHTTP(false)},
		{name: "classes-grpc", run: classesGRPC},
		{name: "classes-unread-grpc", run: h2(4, true, unreadClasses)},
		{name: "json-unread", run: unreadJSON(6, "")},
		{name: "json-unread-gzip", run: unreadJSON(6, "Accept-Encoding: gzip\r\n")},
		{name: "grpc-unread", run: h2(3, true, unreadUnary(""))},
		{name: "grpc-unread-gzip", run: h2(3, true, unreadUnary("gzip"))},
		{name: "load-hostages", run: hostages},
		{name: "sequences-held", run: heldSequences},
		{name: "log-flood", run: logFlood},
	}
}

// doubles is a tensor of FP64 whose values have the longest texts.
func doubles(size int, rng *rand.Rand) []byte {
	b := make([]byte, 0, size)
	for len(b) < size {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(-rng.Float64()*1e300))
	}
	return b
}

// noise is a tensor of INT8 that gzip can't make small.
func noise(size int, rng *rand.Rand) []byte {
	b := make([]byte, 0, size+8)
	for len(b) < size {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:size]
}

// classesHTTP wants classes of all elements. Half of the calls are left in the middle.
func classesHTTP(binaries bool) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		data, length := doubles(classified, rng), ""
		body := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"FP64","parameters":{"binary_data_size":%d}}],`+
			`"outputs":[{"name":"OUTPUT0","parameters":{"classification":%d,"binary_data":true}}]}`, len(data)/8, len(data), len(data)/8)
		if binaries {
			length = fmt.Sprint(len(body))
			body = append(body, data...)
		} else {
			body = fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"FP64","data":[%s1]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":%d}}]}`,
				len(data)/8, strings.Repeat("1,", len(data)/8-1), len(data)/8)
		}
		web, seed := s.web(), rng.Uint64()
		defer web.CloseIdleConnections()
		return many(ctx, 3, func(ctx context.Context) error {
			own, cancel := perhapsLeft(ctx, rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano()))))
			defer cancel()
			headers := []string{"Content-Type", "application/octet-stream"}
			if binaries {
				headers = append(headers, checked.HeaderLength, length)
			}
			n.asked(own, postAway(own, web, s.url("/v2/models/floats/infer"), body, headers))
			return nil
		})
	}
}

// perhapsLeft is a context that in half of the cases ends within a second.
func perhapsLeft(ctx context.Context, rng *rand.Rand) (context.Context, context.CancelFunc) {
	if rng.IntN(2) == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(rng.Int64N(int64(time.Second))))
}

// postAway is an exchange whose answer is read and not kept.
func postAway(ctx context.Context, c *http.Client, url string, body []byte, headers []string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// asked notes what came of a call that may have been left.
func (n *notes) asked(own context.Context, err error) {
	switch {
	case own.Err() != nil:
		n.add("left")
	case err == nil:
		n.add("served")
	default:
		n.add("refused")
	}
}

func tensorMessage(model, datatype string, shape int64, data []byte, classes int64) *inference.ModelInferRequest {
	m := &inference.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{data},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: datatype, Shape: []int64{shape}}}}
	if classes > 0 {
		m.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0",
			Parameters: map[string]*inference.InferParameter{"classification": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: classes}}}}}
	}
	return m
}

// classesGRPC wants classes of all elements. Half of the calls are left in the middle.
func classesGRPC(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
	data, seed := doubles(classified, rng), rng.Uint64()
	m := tensorMessage("floats", "FP64", int64(len(data)/8), data, int64(len(data)/8))
	return many(ctx, 3, func(ctx context.Context) error {
		c, closed, err := s.dialGRPC()
		if err != nil {
			return err
		}
		defer closed()
		own, cancel := perhapsLeft(ctx, rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano()))))
		defer cancel()
		_, err = c.ModelInfer(own, m)
		n.asked(own, err)
		return nil
	})
}

// streams sends a message on some streams whose windows let no answer through, and hangs.
func (c *h2conn) streams(ctx context.Context, count int, m *inference.ModelInferRequest, extra ...string) {
	message, err := proto.Marshal(m)
	if err != nil {
		c.n.add("faults of ours")
		return
	}
	if !c.did(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})) {
		return
	}
	for range count {
		id, ok := c.call(false, extra...)
		for rest := prefixed(0, uint32(len(message)), message); ok && len(rest) > 0; {
			k := min(len(rest), 16000)
			ok = c.did(c.fr.WriteData(id, k == len(rest), rest[:k]))
			rest = rest[k:]
		}
		if !ok {
			return
		}
		c.n.add("calls")
	}
	pause(ctx, 3*time.Second)
}

// unreadClasses wants classes on many streams, and takes none.
func unreadClasses(ctx context.Context, c *h2conn, rng *rand.Rand) {
	data := doubles(512<<10, rng)
	c.streams(ctx, 4, tensorMessage("floats", "FP64", int64(len(data)/8), data, int64(len(data)/8)))
}

// unreadUnary wants large answers on many streams, compressed perhaps, and takes none.
func unreadUnary(encoding string) func(context.Context, *h2conn, *rand.Rand) {
	return func(ctx context.Context, c *h2conn, rng *rand.Rand) {
		var extra []string
		if encoding != "" {
			extra = []string{"grpc-accept-encoding", encoding}
		}
		data := noise(1<<20, rng)
		c.streams(ctx, 4, tensorMessage("bytes", "INT8", int64(len(data)), data, 0), extra...)
	}
}

// unreadJSON sends binary tensors, wants JSON, which is several times as much, and reads
// nothing of it. Its connections stay for some seconds.
func unreadJSON(k int, header string) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		data := noise(largeAnswer, rng)
		head := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","shape":[%d],"datatype":"INT8","parameters":{"binary_data_size":%d}}],`+
			`"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":false}}]}`, len(data), len(data))
		request := fmt.Appendf(nil, "POST /v2/models/bytes/infer HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n%s: %d\r\n\r\n%s",
			header, len(head)+len(data), checked.HeaderLength, len(head), head)
		return many(ctx, k, func(ctx context.Context) error {
			w, err := s.open(ctx, n, s.http, "http/1.1")
			if err != nil {
				return err
			}
			defer w.end()
			if t, ok := w.Conn.(*net.TCPConn); ok {
				if err := t.SetReadBuffer(4096); err != nil {
					return err
				}
			}
			if w.send(request) && w.send(data) {
				n.add("sent")
			}
			pause(ctx, 10*time.Second)
			return nil
		})
	}
}

// hostageCount is as many models as the server loads at a time.
const hostageCount = 4

// hostages loads models whose warm-up would take for ever, and leaves. What it holds must
// be free again for an unload.
func hostages(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	web := s.web()
	defer web.CloseIdleConnections()
	tensor := func(name string) []any {
		return []any{map[string]any{"name": name, "data_type": "TYPE_INT32", "dims": []int{1}}}
	}
	config, err := json.Marshal(map[string]any{"backend": "identity", "input": tensor("INPUT0"), "output": tensor("OUTPUT0"),
		"instance_group": []any{map[string]any{"count": 1, "kind": "KIND_CPU"}},
		"model_warmup": []any{map[string]any{"name": "endless", "batch_size": 1, "count": uint32(math.MaxUint32),
			"inputs": map[string]any{"INPUT0": map[string]any{"data_type": "TYPE_INT32", "dims": []int{1}, "zero_data": true}}}}})
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"parameters": map[string]string{"config": string(config)}})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i := range hostageCount {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _, err := checked.Post(ctx, web, s.url(fmt.Sprintf("/v2/repository/models/hostage%d/load", i)), body)
				n.asked(ctx, err)
				pause(ctx, 100*time.Millisecond)
			}
		})
	}
	wg.Wait()
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for i := range hostageCount {
		if _, _, err := checked.Post(after, web, s.url(fmt.Sprintf("/v2/repository/models/hostage%d/unload", i)), nil); err != nil {
			return fmt.Errorf("unload of a model that warms up: %w", err)
		}
	}
	return nil
}

// heldSequences begins more sequences than a model takes, keeps all alive for the time,
// and ends them.
func heldSequences(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
	web, base := s.web(), rng.Uint64()>>2+1
	defer web.CloseIdleConnections()
	step := func(ctx context.Context, id uint64, start, end bool) error {
		own, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		body := checked.Step{ID: id, Start: start, End: end, Value: 1}.JSON()
		_, _, err := checked.Post(own, web, s.url("/v2/models/held/infer"), body)
		return err
	}
	var wg sync.WaitGroup
	for i := range uint64(64) {
		wg.Go(func() {
			for start := true; ctx.Err() == nil; start = false {
				if err := step(ctx, base+i, start, false); err != nil {
					n.add("not begun or ended by the server")
					break
				}
				n.add("kept alive")
				pause(ctx, 300*time.Millisecond)
			}
			if step(context.WithoutCancel(ctx), base+i, false, true) != nil {
				n.add("had ended")
			}
		})
	}
	wg.Wait()
	return nil
}

// What requests that are refused may add to the server's log: at once, and each second.
const (
	logBurst = 512 << 10
	logRate  = 64 << 10
)

// logFlood sends JSON that is none, as fast as it is refused.
func logFlood(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	before, began := s.logged(), time.Now()
	body := []byte(`{"inputs":[` + strings.Repeat("x", 1100))
	web := s.web()
	defer web.CloseIdleConnections()
	if err := many(ctx, 4, func(ctx context.Context) error {
		_, _, err := checked.Post(ctx, web, s.url("/v2/models/echo/infer"), body)
		refused(ctx, n, err)
		return nil
	}); err != nil {
		return err
	}
	grown := s.logged() - before
	n.addN("KB logged", int(grown>>10))
	if most := int64(logBurst + logRate*time.Since(began).Seconds()); grown > most {
		return fmt.Errorf("the log grew by %d bytes in %v, at most %d are allowed", grown, time.Since(began).Round(time.Millisecond), most)
	}
	return nil
}
