package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/gateway/grpcapi"
	"github.com/sluice-serve/sluice/gateway/httpapi"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/memory/memorytest"
	"github.com/sluice-serve/sluice/gateway/pipeline"
	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

var stress = flag.Duration("stress", time.Second, "how long TestStress lasts")

// storm is everything behind the front ends of TestStress. What it frees it overwrites.
type storm struct {
	memorytest.Plenty
	t       *testing.T
	s       *dynamic.Scheduler
	down    sync.WaitGroup
	memory  atomic.Int64 // bytes that are out
	pins    atomic.Int64
	tickets atomic.Int64
	opened  atomic.Int64
	ended   atomic.Int64
	good    atomic.Int64 // answers
	bad     atomic.Int64 // refusals
}

func (s *storm) buffer(n int) *infer.Buffer {
	s.memory.Add(int64(n))
	return infer.NewBuffer(make([]byte, n), func(b *infer.Buffer) {
		s.Free(b.Data)
		b.Data = nil
	})
}

// Body is httpapi's and grpcapi's Bodies.
func (s *storm) Body(n int64) (*infer.Buffer, error) { return s.buffer(int(n)), nil }

// Alloc and Free are schedule.Memory's.
func (s *storm) Alloc(n int64) ([]byte, error) {
	s.memory.Add(n)
	return make([]byte, n), nil
}

func (s *storm) Free(b []byte) {
	s.memory.Add(-int64(len(b)))
	for i := range b {
		b[i] = 0xee
	}
}

// Holds makes large bodies be named where they lie.
func (s *storm) Holds(b []byte) bool { return len(b) >= 32<<10 }

// instance answers from another goroutine, and now and then loses its worker.
type instance struct {
	s     *storm
	index int
}

func (i *instance) Cancel(*infer.Batch, int) {}
func (*instance) Occupied(uint64) bool       { return false }
func (*instance) Place() (string, string)    { return "", "" }

func (i *instance) Execute(b *infer.Batch) {
	i.s.down.Add(1)
	time.AfterFunc(time.Duration(rand.IntN(300))*time.Microsecond, func() {
		defer i.s.down.Done()
		switch rand.IntN(60) {
		case 0:
			b.Deliver(&infer.Result{Err: fmt.Errorf("gone: %w", infer.ErrWorkerLost)})
			i.s.s.InstanceDown(i.index)
			i.s.s.InstanceUp(i.index)
		case 1:
			b.Deliver(&infer.Result{Err: infer.Errorf(infer.Internal, "no luck")})
		default:
			b.Deliver(i.s.echo(b))
		}
	})
}

func (s *storm) echo(b *infer.Batch) *infer.Result {
	in := &b.Inputs[0]
	size := 0
	for _, seg := range in.Segments {
		size += len(seg)
	}
	memory := s.buffer(size)
	at := 0
	for _, seg := range in.Segments {
		at += copy(memory.Data[at:], seg)
	}
	return &infer.Result{Memory: memory, Outputs: []infer.Tensor{{Name: "OUT", Datatype: in.Datatype, Shape: bytes64(in.Shape), Data: memory.Data}}}
}

func bytes64(shape []int64) []int64 { return append([]int64(nil), shape...) }

// stormModel is the one model there is.
type stormModel struct {
	pipeline.Model // for what is not asked
	s              *storm
}

func (s *storm) Acquire(context.Context, string, string) (pipeline.Model, error) {
	s.pins.Add(1)
	return stormModel{s: s}, nil
}

func (s *storm) Look(string, string) (decoupled bool, err error) { return false, nil }

func (m stormModel) Validate(req *infer.Request) error {
	if len(req.Inputs) != 1 || len(req.Inputs[0].Shape) != 2 {
		return infer.Errorf(infer.InvalidArg, "not one input of two dimensions")
	}
	req.Rows = int(req.Inputs[0].Shape[0])
	return nil
}

func (m stormModel) Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error {
	return m.s.s.Do(ctx, req, send)
}

func (m stormModel) Start(ctx context.Context, req *infer.Request, to infer.Sink) bool {
	return m.s.s.Start(ctx, req, to)
}

func (m stormModel) Decoupled() bool                             { return false }
func (m stormModel) VersionText() string                         { return "1" }
func (m stormModel) Batched() bool                               { return true }
func (m stormModel) Present(*infer.Response)                     {}
func (m stormModel) Done(*infer.Request, error)                  {}
func (m stormModel) Labels(string) []string                      { return nil }
func (m stormModel) Device() string                              { return "" }
func (m stormModel) Fit(_ string, _ bool, shape []int64) []int64 { return shape }
func (m stormModel) Release()                                    { m.s.pins.Add(-1) }

// tickets are pipeline.Admission: each call has one, and gives it back once.
type tickets struct {
	s    *storm
	slow bool
}

type ticket struct{ closed atomic.Bool }

func (l tickets) Open(_ context.Context, env *infer.Envelope) error {
	l.s.opened.Add(1)
	l.s.tickets.Add(1)
	env.Admitted = &ticket{}
	return refuseSome()
}

func (l tickets) Request(_ context.Context, req *infer.Request) error {
	if t, ok := req.Envelope.Admitted.(*ticket); !ok || t.closed.Load() {
		l.s.t.Error("Request of a call that is not open")
	}
	return refuseSome()
}

func refuseSome() error {
	if rand.IntN(100) == 0 {
		return infer.Refusef(infer.ResourceExhausted, infer.ReasonQueueFull, "not now")
	}
	return nil
}

func (l tickets) Close(env *infer.Envelope, end *infer.End) {
	t, ok := env.Admitted.(*ticket)
	if !ok {
		return // ended before it was opened
	}
	if t.closed.Swap(true) {
		l.s.t.Error("a call was closed twice")
	}
	l.s.tickets.Add(-1)
}

func (l tickets) Waits() bool { return l.slow }

type alive struct{ httpapi.Control }

func (alive) Live() bool { return true }

// TestStress drives both front ends of our own, the pipeline and a scheduler with
// everything that can go wrong at a time: callers that leave, deadlines, lost workers,
// refusals, slow readers, pipelined calls of all kinds. Each answer is the one that was
// asked for, and when all is over nothing is held.
func TestStress(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprintf("limits that wait=%v", slow), func(t *testing.T) { runStorm(t, slow) })
	}
}

func runStorm(t *testing.T, slow bool) {
	s := &storm{t: t}
	var err error
	s.s, err = dynamic.New(dynamic.Config{Model: schedule.Model{Name: "m", Version: 1, MaxBatchSize: 4, Inputs: []string{"IN"}},
		MaxQueueDelay: 100 * time.Microsecond, Policy: schedule.QueuePolicy{Set: true, Timeout: 20 * time.Millisecond, MaxSize: 32}},
		schedule.Deps{Executors: []infer.Executor{&instance{s, 0}, &instance{s, 1}}, Memory: s, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
			Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := pipeline.New(pipeline.Config{}, pipeline.Deps{Models: s, Admission: tickets{s, slow}, Ended: func(env *infer.Envelope, end *infer.End) {
		s.ended.Add(1)
		if end.Request != nil && end.Err == nil && env.Action == infer.ActionInference && !strings.HasPrefix(end.Request.ID, "id-") {
			t.Errorf("a call ended with another's request %q", end.Request.ID)
		}
	}})
	web, rpc, stop := s.serve(p)
	var wg sync.WaitGroup
	end := time.Now().Add(*stress)
	conn, err := grpc.NewClient(rpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 6 {
		wg.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				s.pipelined(web, n*1e6+i*10)
			}
		})
		wg.Go(func() {
			client := inference.NewGRPCInferenceServiceClient(conn)
			for i := 0; time.Now().Before(end); i++ {
				s.rpc(client, n*1e6+i)
			}
		})
	}
	wg.Wait()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.s.Drain(ctx); err != nil {
		t.Error(err)
	}
	s.down.Wait()
	if s.good.Load() == 0 || s.bad.Load() == 0 {
		t.Errorf("%d answers, %d refusals", s.good.Load(), s.bad.Load())
	}
	for what, n := range map[string]int64{"bytes": s.memory.Load(), "pins": s.pins.Load(), "tickets": s.tickets.Load(),
		"http calls": p.InFlight("http"), "grpc calls": p.InFlight("grpc"), "waiting requests": int64(s.s.Pending())} {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
	t.Logf("%d calls, %d answers, %d refusals", s.ended.Load(), s.good.Load(), s.bad.Load())
}

// serve starts both front ends.
func (s *storm) serve(p *pipeline.Pipeline) (web, rpc string, stop func()) {
	t := s.t
	api, err := httpapi.NewAPI(httpapi.APIConfig{}, httpapi.APIDeps{Pipeline: p, Control: alive{}, Bodies: s})
	if err != nil {
		t.Fatal(err)
	}
	own := httpapi.NewServer(httpapi.Config{Config: listen.Config{Address: "127.0.0.1"}, Transport: httpapi.TransportOwn}, api, nil)
	if err := own.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := grpcapi.DefaultConfig()
	cfg.Address, cfg.Port, cfg.Transport = "127.0.0.1", 0, grpcapi.TransportOwn
	g, err := grpcapi.NewServer(t.Context(), cfg, grpcapi.Deps{Pipeline: p, Bodies: s})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- own.Serve(t.Context()) }()
	go func() { ended <- g.Serve() }()
	return own.Addrs()[0].String(), g.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := errors.Join(own.Shutdown(ctx), g.Shutdown(ctx), <-ended, <-ended); err != nil {
			t.Error(err)
		}
	}
}

// numbers is a tensor that no other call has.
func numbers(id, n int) []byte {
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, uint32(id*31+i))
	}
	return b
}

// size is mostly small, sometimes more than a socket or a batch's slot takes.
func size() int {
	switch rand.IntN(12) {
	case 0:
		return 9_000
	case 1:
		return 30_000
	}
	return 1 + rand.IntN(20)
}

func (s *storm) rpc(client inference.GRPCInferenceServiceClient, id int) {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	switch rand.IntN(6) {
	case 0:
		time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, cancel)
	case 1:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
		defer cancel()
	}
	n := size()
	in := numbers(id, n)
	got, err := client.ModelInfer(ctx, &inference.ModelInferRequest{ModelName: "m", Id: fmt.Sprintf("id-%d", id), Inputs: []*inference.ModelInferRequest_InferInputTensor{
		{Name: "IN", Datatype: "INT32", Shape: []int64{1, int64(n)}}}, RawInputContents: [][]byte{in}})
	if err != nil {
		s.bad.Add(1)
		return
	}
	s.good.Add(1)
	if got.Id != fmt.Sprintf("id-%d", id) || !bytes.Equal(got.RawOutputContents[0], in) {
		s.t.Errorf("id-%d: got the answer of %s", id, got.Id)
	}
}

// pipelined sends calls of all kinds at once and reads their answers, or leaves.
func (s *storm) pipelined(addr string, id int) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = nc.Close() }() // the server may have closed it
	if err := nc.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Error(err)
		return
	}
	var out bytes.Buffer
	var want [][]byte // nil: anything, empty: a control call
	for i := range 1 + rand.IntN(6) {
		switch rand.IntN(6) {
		case 0:
			out.WriteString("GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
			want = append(want, []byte{})
		case 1:
			out.WriteString("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{]}")
			want = append(want, nil)
		default:
			in := numbers(id+i, size())
			head := fmt.Sprintf(`{"id":"id-%d","inputs":[{"name":"IN","datatype":"INT32","shape":[1,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
				id+i, len(in)/4, len(in))
			fmt.Fprintf(&out, "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s%s",
				len(head), len(head)+len(in), head, in)
			want = append(want, in)
		}
	}
	go func() { _, _ = nc.Write(out.Bytes()) }() // a connection that is left fails
	leave := -1
	if rand.IntN(4) == 0 {
		leave = rand.IntN(len(want))
		<-time.After(time.Duration(rand.IntN(1000)) * time.Microsecond)
	}
	r := bufio.NewReader(nc)
	for i := range want {
		if i == leave {
			return
		}
		if !s.answer(r, want[i], id+i) {
			return
		}
	}
}

func (s *storm) answer(r *bufio.Reader, want []byte, id int) (more bool) {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		s.t.Errorf("id-%d: %v", id, err)
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	if rand.IntN(4) == 0 {
		<-time.After(time.Duration(rand.IntN(500)) * time.Microsecond) // a slow reader
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		s.t.Errorf("id-%d: %v", id, err)
		return false
	case want == nil && resp.StatusCode == 200:
		s.t.Errorf("id-%d: a call that makes no sense was answered", id)
	case len(want) == 0 && want != nil && len(body) > 0:
		if resp.StatusCode == 200 {
			s.t.Errorf("id-%d: got another's answer", id)
		}
	case len(want) > 0 && resp.StatusCode == 200:
		s.good.Add(1)
		if !bytes.Contains(body, fmt.Appendf(nil, `"id-%d"`, id)) || !bytes.HasSuffix(body, want) {
			s.t.Errorf("id-%d: got another's answer %.200q", id, body)
		}
	case len(want) > 0:
		s.bad.Add(1)
	}
	return !resp.Close
}
