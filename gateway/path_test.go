package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/inference"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/backendtest/compose"
	"github.com/sluice-serve/sluice/workers/backend/identity"
)

// roleEnv makes the test binary the worker process.
const roleEnv = "SLUICE_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "worker" {
		os.Exit(m.Run())
	}
	if err := playWorker(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func playWorker() error {
	conn, shared, err := workers.Inherit()
	if err != nil {
		return err
	}
	w, err := workers.New(workers.Config{Version: "test"}, workers.Deps{Conn: conn, Shared: shared, Exit: os.Exit,
		Instances: func(n int) { runtime.GOMAXPROCS(n + 2) }, // as cmd/sluice-worker
		Log:       slog.New(slog.DiscardHandler), Backends: map[string]backend.Factory{"identity": identity.New, "compose": compose.New}})
	if err != nil {
		return err
	}
	return w.Run(context.Background(), nil)
}

const pathModel = `
backend: "identity"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
`

// startPath runs a whole gateway with one worker and two models, "id" and "kept", which
// is "id" with its answers in the response cache.
func startPath(t testing.TB) (*Gateway, ports) {
	t.Helper()
	return startModels(t, map[string]string{"id": pathModel, "kept": pathModel + "response_cache { enable: true }"}, func(*Config) {})
}

// startModels is startPath with these models, by name, and a config that set has changed.
func startModels(t testing.TB, models map[string]string, set func(*Config)) (*Gateway, ports) {
	t.Helper()
	t.Setenv(roleEnv, "worker")
	repository := t.TempDir()
	for name, config := range models {
		if err := os.MkdirAll(filepath.Join(repository, name, "1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := DefaultConfig()
	cfg.Repository.Paths = []string{repository}
	cfg.ExitGrace = time.Millisecond
	cfg.Cache = CacheConfig{"local": {"size": "16777216"}}
	cfg.Workers.Binary = os.Args[0]
	cfg.Workers.RequestArena, cfg.Workers.ResponseArena = 16<<20, 16<<20
	for _, l := range []*Listen{&cfg.HTTP.Listen, &cfg.GRPC.Listen, &cfg.Metrics.Listen} {
		l.Address, l.Port = "127.0.0.1", 0
	}
	set(&cfg)
	g, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	p := g.ports()
	waitReady(t, p.HTTP)
	return g, p
}

func waitReady(t testing.TB, port int) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); ; runtime.Gosched() {
		nc := connect(t, port)
		_, err := io.WriteString(nc, "GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		answer, _ := io.ReadAll(nc) // an answer that is cut off is not the one that is waited for
		_ = nc.Close()
		if err == nil && bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the model is not ready: %q", answer)
		}
	}
}

func connect(t testing.TB, port int) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// httpOnce returns a function that sends 64 bytes to the model and reads the answer,
// without an allocation of its own.
func httpOnce(t *testing.T, port int, model string) func() {
	nc := connect(t, port)
	head := `{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","parameters":{"binary_data_size":64}}],` +
		`"parameters":{"binary_data_output":true}}`
	body := head + strings.Repeat("abcd", 16)
	request := fmt.Appendf(nil, "POST /v2/models/%s/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s",
		model, len(head), len(body), body)
	answer, want := make([]byte, 4<<10), []byte(strings.Repeat("abcd", 16))
	return func() {
		if _, err := nc.Write(request); err != nil {
			t.Fatal(err)
		}
		for n := 0; !bytes.HasSuffix(answer[:n], want); {
			m, err := nc.Read(answer[n:])
			if err != nil {
				t.Fatalf("%v after %q", err, answer[:n])
			}
			if n += m; n >= 12 && string(answer[9:12]) != "200" {
				t.Fatalf("%s", answer[:n])
			}
		}
	}
}

// grpcOnce is httpOnce over gRPC.
func grpcOnce(t *testing.T, port int, model string) func() {
	nc := connect(t, port)
	m, err := proto.Marshal(&inference.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{[]byte(strings.Repeat("abcd", 16))},
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 16}}}})
	if err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	call := func() []byte {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/inference.GRPCInferenceService/ModelInfer"},
			{":authority", "a"}, {"te", "trailers"}, {"content-type", "application/grpc"}} {
			if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		fr := http2.NewFramer(&out, nil)
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		if err == nil {
			err = fr.WriteData(1, true, append([]byte{0, 0, 0, 0, byte(len(m))}, m...))
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var hello bytes.Buffer
	hello.WriteString(http2.ClientPreface)
	fr := http2.NewFramer(&hello, nil)
	if err := fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if err := fr.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	first, again := append(hello.Bytes(), call()...), call() // whose fields are in the table
	data := 9 + int(again[1])<<8 + int(again[2])
	stream := uint32(1)
	var head [9]byte
	body := make([]byte, 1<<16)
	exchange := func(request []byte) {
		if _, err := nc.Write(request); err != nil {
			t.Fatal(err)
		}
		for ended := false; !ended; {
			if _, err := io.ReadFull(nc, head[:]); err != nil {
				t.Fatal(err)
			}
			b := body[:int(head[0])<<16|int(head[1])<<8|int(head[2])]
			if _, err := io.ReadFull(nc, b); err != nil {
				t.Fatal(err)
			}
			if ended = head[3] == byte(http2.FrameHeaders) && head[4]&byte(http2.FlagHeadersEndStream) != 0; ended &&
				!bytes.Contains(b, []byte("grpc-status\x010")) {
				t.Fatalf("trailers %q", b)
			}
		}
	}
	exchange(first)
	return func() {
		stream += 2
		binary.BigEndian.PutUint32(again[5:], stream)
		binary.BigEndian.PutUint32(again[data+5:], stream)
		exchange(again)
	}
}

// TestPathAllocations holds what one inference allocates in the gateway, from the socket to
// the worker's process and back, with metrics and statistics on as they are by default.
func TestPathAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools now and then")
	}
	_, p := startPath(t)
	for name, c := range map[string]struct {
		once func()
		most float64
	}{
		"http":      {httpOnce(t, p.HTTP, "id"), 7},
		"http, hit": {httpOnce(t, p.HTTP, "kept"), 2},
		"grpc":      {grpcOnce(t, p.GRPC, "id"), 7},
		"grpc, hit": {grpcOnce(t, p.GRPC, "kept"), 3},
	} {
		for range 100 {
			c.once()
		}
		got := testing.AllocsPerRun(1000, c.once)
		t.Logf("%s: %.1f allocations for an inference", name, got)
		if got > c.most {
			t.Errorf("%s: an inference takes %.1f allocations, at most %.0f", name, got, c.most)
		}
	}
}
