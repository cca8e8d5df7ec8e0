package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

func attacksOnHTTP() []attack {
	return []attack{
		{name: "h1-slow-headers", run: h1(60, slowHeaders)},
		{name: "h1-slow-body", run: h1(60, slowBody)},
		{name: "h1-tiny-chunks", run: h1(8, tinyChunks)},
		{name: "h1-huge-headers", run: h1(8, hugeHeaders)},
		{name: "h1-huge-announced", run: h1(60, hugeAnnounced)},
		{name: "h1-never-read", run: h1(16, neverRead)},
		{name: "h1-idle", run: h1(600, idle)},
		{name: "h1-garbage", run: h1(8, garbage)},
		{name: "h1-gzip-bomb", run: gzipBomb},
		{name: "h1-odd-json", run: oddJSON},
		{name: "h1-pipelined", run: h1(8, pipelined)},
		{name: "h1-left", run: h1(16, left)},
	}
}

// h1 runs k connections that each do one thing.
func h1(k int, do func(ctx context.Context, w *wire, rng *rand.Rand)) func(context.Context, *server, *rand.Rand, *notes) error {
	return func(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
		seed := rng.Uint64()
		return many(ctx, k, func(ctx context.Context) error {
			w, err := s.open(ctx, n, s.http, "http/1.1")
			if err != nil {
				return err
			}
			defer w.end()
			do(ctx, w, rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano()))))
			return nil
		})
	}
}

const inferHead = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"

func slowHeaders(ctx context.Context, w *wire, _ *rand.Rand) {
	for _, b := range []byte(inferHead + strings.Repeat("X-A: b\r\n", 1000)) {
		if !w.send([]byte{b}) || !pause(ctx, 300*time.Millisecond) {
			return
		}
	}
}

func slowBody(ctx context.Context, w *wire, _ *rand.Rand) {
	body, head := checked.BinaryRequest(1, make([]int32, 250000))
	if !w.send([]byte(fmt.Sprintf("%sContent-Length: %d\r\n%s: %s\r\n\r\n", inferHead, len(body), checked.HeaderLength, head))) || !w.send(body[:300]) {
		return
	}
	for _, b := range body[300:] {
		if !w.send([]byte{b}) || !pause(ctx, 200*time.Millisecond) {
			return
		}
	}
}

func tinyChunks(_ context.Context, w *wire, _ *rand.Rand) {
	if !w.send([]byte(inferHead + "Transfer-Encoding: chunked\r\n\r\n")) {
		return
	}
	some := bytes.Repeat([]byte("1\r\n \r\n"), 500)
	for range 2000 {
		if !w.send(some) {
			return
		}
	}
	if w.send([]byte("0\r\n\r\n")) {
		w.drain()
	}
}

func hugeHeaders(_ context.Context, w *wire, rng *rand.Rand) {
	if !w.send([]byte(inferHead)) {
		return
	}
	line := []byte(fmt.Sprintf("X-%d: %s\r\n", rng.Uint32(), strings.Repeat("a", 1+rng.IntN(4000))))
	for range 5000 {
		if !w.send(line) {
			return
		}
	}
}

// hugeAnnounced announces far more than it sends, and hangs.
func hugeAnnounced(ctx context.Context, w *wire, rng *rand.Rand) {
	n := []int64{1 << 23, 1 << 28, 1 << 31, 1 << 40, 1<<63 - 1}[rng.IntN(5)]
	text := fmt.Sprintf(`{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"INT32","parameters":{"binary_data_size":%d}}]}`, n/4, n/4*4)
	length := n
	if n < 1<<62 {
		length += int64(len(text))
	}
	if w.send([]byte(fmt.Sprintf("%sContent-Length: %d\r\n%s: %d\r\n\r\n%s", inferHead, length, checked.HeaderLength, len(text), text))) {
		w.hang(ctx)
	}
}

// neverRead asks for large answers and takes none.
func neverRead(ctx context.Context, w *wire, _ *rand.Rand) {
	body, head := checked.BinaryRequest(1, make([]int32, 100000))
	request := append([]byte(fmt.Sprintf("%sContent-Length: %d\r\n%s: %s\r\n\r\n", inferHead, len(body), checked.HeaderLength, head)), body...)
	for w.send(request) {
	}
	pause(ctx, time.Second)
}

func idle(ctx context.Context, w *wire, _ *rand.Rand) { w.hang(ctx) }

// garbage sends requests of which some bytes are others.
func garbage(_ context.Context, w *wire, rng *rand.Rand) {
	body, head := checked.BinaryRequest(1, make([]int32, 10))
	request := append([]byte(fmt.Sprintf("%sContent-Length: %d\r\n%s: %s\r\n\r\n", inferHead, len(body), checked.HeaderLength, head)), body...)
	for range 1 + rng.IntN(6) {
		at := rng.IntN(len(request))
		switch rng.IntN(4) {
		case 0:
			request[at] = byte(rng.Uint32())
		case 1:
			request = append(request[:at:at], request[at+rng.IntN(len(request)-at):]...)
		case 2:
			request = append(request[:at:at], append([]byte{0, '\r', '\n', byte(rng.Uint32())}, request[at:]...)...)
		case 3:
			request = append(request, request[at:]...)
		}
		if len(request) == 0 {
			return
		}
	}
	if !w.send(request) {
		return
	}
	if err := w.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err == nil {
		w.drain()
	}
}

// bomb is a body that decompresses to so many spaces.
func bomb(size int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is one
	}
	block := bytes.Repeat([]byte(" "), 1<<20)
	for range size >> 20 {
		if _, err := z.Write(block); err != nil {
			panic(err) // a bytes.Buffer takes everything
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
}

func gzipBomb(ctx context.Context, s *server, _ *rand.Rand, n *notes) error {
	body := bomb(256 << 20)
	c := s.web()
	defer c.CloseIdleConnections()
	return many(ctx, 4, func(ctx context.Context) error {
		_, _, err := checked.Post(ctx, c, s.url("/v2/models/echo/infer"), body, "Content-Encoding", "gzip")
		refused(ctx, n, err)
		return nil
	})
}

// refused notes that a request was refused, which it must be.
func refused(ctx context.Context, n *notes, err error) {
	switch {
	case ctx.Err() != nil:
	case err == nil:
		n.add("served")
	default:
		n.add("refused")
	}
}

// oddJSON sends what is JSON and makes no sense, or is more than is good.
func oddJSON(ctx context.Context, s *server, rng *rand.Rand, n *notes) error {
	outputs := make([]any, 50000)
	for i := range outputs {
		outputs[i] = map[string]any{"name": "OUTPUT0"}
	}
	marshal := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // there is nothing in it that JSON lacks
		}
		return b
	}
	input := func(shape string, data string) []byte {
		return []byte(`{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":` + shape + `,"data":` + data + `}]}`)
	}
	bodies := [][]byte{
		input("[1,1]", strings.Repeat("[", 100000)),
		input("[1,1]", strings.Repeat("[", 50000)+strings.Repeat("]", 50000)),
		input("["+strings.Repeat("1,", 100000)+"1]", "[1]"),
		input("[4611686018427387904,4]", "[1]"),
		input("[-1,-1]", "[1]"),
		input("[1,1]", "[1e400]"),
		input("[1,1]", "["+strings.Repeat(" ", 4<<20)+"1]"),
		input("[1,1000000]", "["+strings.Repeat("1,", 999999)+"1"),
		marshal(map[string]any{"inputs": []any{}, "outputs": outputs}),
		marshal(map[string]any{"id": strings.Repeat("x", 4<<20), "inputs": []any{}}),
		[]byte(`{"parameters":{` + strings.TrimSuffix(strings.Repeat(`"a":1,`, 100000), ",") + `},"inputs":[]}`),
		bytes.Repeat([]byte("9"), 4<<20),
		[]byte(`"` + strings.Repeat(`\u0000`, 500000) + `"`),
	}
	c := s.web()
	defer c.CloseIdleConnections()
	first := rng.IntN(len(bodies))
	turn := make(chan int, 1)
	turn <- first
	return many(ctx, 4, func(ctx context.Context) error {
		i := <-turn
		turn <- i + 1
		_, _, err := checked.Post(ctx, c, s.url("/v2/models/echo/infer"), bodies[i%len(bodies)])
		refused(ctx, n, err)
		return nil
	})
}

// pipelined sends thousands of requests at once and reads slowly.
func pipelined(ctx context.Context, w *wire, _ *rand.Rand) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		some := bytes.Repeat([]byte("GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n"), 100)
		for w.send(some) {
		}
	}()
	buf := make([]byte, 2048)
	for pause(ctx, time.Millisecond) {
		if _, err := w.Read(buf); err != nil {
			break
		}
	}
	w.end()
	<-sent
}

// left asks and leaves.
func left(ctx context.Context, w *wire, rng *rand.Rand) {
	body := checked.JSONRequest([]int{4}, []int32{1, 2, 3, 4})
	w.send([]byte(fmt.Sprintf("POST /v2/models/slow/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)))
	pause(ctx, time.Duration(rng.IntN(10))*time.Millisecond)
}
