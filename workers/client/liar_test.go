package client

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/shm"
	"github.com/sluice-serve/sluice/workers/wire"
	"google.golang.org/grpc"
)

const lieEnv = "SLUICE_TEST_LIE"

// liar is a worker that answers the first batch of every mailbox with a lie.
type liar struct {
	workerpb.UnimplementedWorkerServer
	shared *workers.Shared
}

func (l *liar) Hello(context.Context, *workerpb.HelloRequest) (*workerpb.HelloResponse, error) {
	return &workerpb.HelloResponse{Protocol: protocol, Pid: int64(os.Getpid()), Lane: wire.Table, Calls: liesInCalls(),
		Backends: []*workerpb.Backend{{Name: "identity"}}, Devices: []*workerpb.Device{{}}}, nil
}

func (l *liar) Watch(_ *workerpb.WatchRequest, s workerpb.Worker_WatchServer) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.Send(&workerpb.WatchResponse{}); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

func (l *liar) Unload(context.Context, *workerpb.UnloadRequest) (*workerpb.UnloadResponse, error) {
	return &workerpb.UnloadResponse{}, nil
}

func (l *liar) Load(_ context.Context, m *workerpb.LoadRequest) (*workerpb.LoadResponse, error) {
	if m.Model == "deadly" {
		os.Exit(1)
	}
	if liesInCalls() {
		if err := l.lieInCalls(os.Getenv(lieEnv), m.Handle); err != nil {
			return nil, err
		}
	}
	for _, inst := range m.Instances {
		box, err := l.shared.Lane.Mailbox(int(inst.Mailbox))
		if err != nil {
			return nil, err
		}
		go func() {
			off, n, err := box.Take(0)
			if err == nil {
				err = l.lie(os.Getenv(lieEnv), inst.Mailbox, off, n)
			}
			if err != nil {
				os.Exit(1)
			}
		}()
	}
	switch os.Getenv(lieEnv) {
	case "frees without room":
		return &workerpb.LoadResponse{}, nil
	case "too many open requests":
		return &workerpb.LoadResponse{OpenRequests: maxOpen + 1}, nil
	}
	return &workerpb.LoadResponse{OpenRequests: 8, MemoryKinds: []workerpb.MemoryKind{workerpb.MemoryKind_DEVICE}}, nil
}

func (l *liar) lie(kind string, box uint32, off, n int64) error {
	var b wire.Batch
	src, err := l.shared.Requests.View(off, n)
	if err == nil {
		err = wire.DecodeBatch(src, &b)
	}
	if err != nil {
		return err
	}
	output := wire.Output{Name: "OUTPUT0", Datatype: infer.Uint8, Shape: []int64{4}, Data: wire.Segment{Offset: 0, Length: 4}}
	r := wire.Result{ID: b.ID, Outputs: []wire.Output{output}}
	c := shm.Completion{Batch: b.ID, Mailbox: box}
	misplace(kind, &r)
	switch kind {
	case "no answer":
		return nil
	case "response outside":
		r.Outputs, r.Responses = nil, []wire.Response{{Index: 7, Final: true, Outputs: r.Outputs}}
	case "other batch":
		c.Batch++
	case "other batch inside":
		r.ID++
	case "other mailbox":
		c.Mailbox++
	case "an answer behind the last": // its request may be another one by then
		r.Outputs, r.Responses = nil, []wire.Response{{Final: true, Outputs: r.Outputs}}
		r.More = true
		if err := l.send(kind, c, &r); err != nil {
			return err
		}
	case "outputs behind the last":
		part := wire.Result{ID: b.ID, More: true, Responses: []wire.Response{{Final: true, Outputs: r.Outputs}}}
		if err := l.send(kind, c, &part); err != nil {
			return err
		}
	case "frees without room":
		r = wire.Result{ID: b.ID, More: true, Free: true}
	case "read before free":
		r = wire.Result{ID: b.ID, More: true, InputsRead: true}
	case "read twice":
		r = wire.Result{ID: b.ID, More: true, Free: true, InputsRead: true}
		if err := l.send(kind, c, &r); err != nil {
			return err
		}
	case "passes what is read":
		r = wire.Result{ID: b.ID, More: true, Free: true, InputsRead: true}
		if err := l.send(kind, c, &r); err != nil {
			return err
		}
		output.Data = wire.IsInput(0, int64(len(b.Inputs[0].Segments)))
		r = wire.Result{ID: b.ID, Responses: []wire.Response{{Final: true, Outputs: []wire.Output{output}}}}
	case "frees at the end":
		r = wire.Result{ID: b.ID, Free: true}
	case "frees twice":
		r = wire.Result{ID: b.ID, More: true, Free: true}
		if err := l.send(kind, c, &r); err != nil {
			return err
		}
	case "keeps silent":
		if err := l.send(kind, c, &wire.Result{ID: b.ID, More: true, Free: true}); err != nil {
			return err
		}
		if err := l.cancelled(off, n); err != nil {
			return err
		}
	case "parts": // which is no lie
		r.Outputs, r.Responses = nil, []wire.Response{{Outputs: r.Outputs}, {Err: "half", Code: infer.NotFound, Reason: "made up"}}
		r.More = true
		if err := l.send(kind, c, &r); err != nil {
			return err
		}
		r.More, r.Responses[0].Final, r.Responses = false, true, r.Responses[:1]
	}
	return l.send(kind, c, &r)
}

// misplace lies about where the outputs of r lie.
func misplace(kind string, r *wire.Result) {
	output := r.Outputs[0]
	switch kind {
	case "output outside":
		r.Outputs[0].Data.Offset = 1 << 40
	case "input that is not there":
		r.Outputs[0].Data = wire.IsInput(2, 4)
	case "input far away":
		r.Outputs[0].Data = wire.IsInput(1<<59, 4)
	case "input before the first":
		r.Outputs[0].Data = wire.Segment{Offset: wire.IsInput(0, 4).Offset | math.MinInt64, Length: 4}
	case "input of another size": // its request has 16 bytes
		r.Outputs[0].Data = wire.IsInput(0, 4)
	case "one input that is, one that is not":
		output.Shape = []int64{16}
		output.Data = wire.IsInput(0, 16)
		r.Outputs = []wire.Output{output, {Name: "OUTPUT1", Datatype: infer.Uint8, Shape: []int64{16}, Data: wire.IsInput(7, 16)}}
	case "resident, though nobody asked for it":
		r.Outputs[0].Name, r.Outputs[0].Data = "OUTPUT1", wire.InRegion(wire.FirstResident, 0, 4)
	case "resident behind its beginning":
		r.Outputs[0].Data = wire.InRegion(wire.FirstResident, 4, 4)
	case "one resident, one outside":
		outside := output
		outside.Data.Offset = 1 << 40
		r.Outputs[0].Data = wire.InRegion(wire.FirstResident, 0, 4)
		r.Outputs = append(r.Outputs, outside)
	}
}

// cancelled waits until the batch's request is cancelled.
func (l *liar) cancelled(off, n int64) error {
	flag, err := l.shared.Requests.View(off+wire.FlagsOffset(n), 4)
	if err != nil {
		return err
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if atomic.LoadUint32((*uint32)(unsafe.Pointer(&flag[0]))) != 0 {
			return nil
		}
	}
	return nil
}

func (l *liar) send(kind string, c shm.Completion, r *wire.Result) error {
	d := wire.AppendResult(nil, r)
	mem, err := l.shared.Responses.Alloc(int64(len(d)))
	if err != nil {
		return err
	}
	copy(mem, d)
	c.Offset, _ = l.shared.Responses.Offset(mem)
	c.Length = int64(len(d))
	switch kind {
	case "descriptor outside":
		c.Offset = math.MaxInt64 - 1
	case "descriptor of all memory":
		c.Length = l.shared.Responses.Size()
	case "garbage":
		for i := range mem {
			mem[i] = 0xff
		}
	}
	return l.shared.Lane.Complete(c)
}

func runLiar() error {
	conn, shared, err := workers.Inherit()
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	workerpb.RegisterWorkerServer(s, &liar{shared: shared})
	return s.Serve(&oneListener{conn: conn})
}

// oneListener accepts one connection; the second Accept ends the process, some time
// after its connection has.
type oneListener struct {
	conn net.Conn
	done bool
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.done {
		select {} // until it is killed
	}
	l.done = true
	return l.conn, nil
}

func (l *oneListener) Close() error { return nil }

func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

// A worker that lies is replaced; its batch is lost and nothing else happens.
func TestLiar(t *testing.T) {
	for _, kind := range []string{"output outside", "input that is not there", "input far away", "input before the first",
		"input of another size", "resident, though nobody asked for it", "resident behind its beginning", "one resident, one outside",
		"one input that is, one that is not", "response outside", "other batch", "other batch inside", "other mailbox",
		"descriptor outside", "descriptor of all memory", "garbage"} {
		t.Run(kind, func(t *testing.T) {
			l := as("liar")
			l.Env = append(l.Env, lieEnv+"="+kind)
			w := start(t, Config{Local: []LocalWorker{l}, Backoff: time.Millisecond, KillAfter: 10 * time.Millisecond})
			v := load(t, w, spec(1, nil))
			b, results := newBatch(1, 4)
			b.Requests[0].Outputs = []infer.RequestedOutput{{Name: "OUTPUT0", Resident: true}}
			var freed atomic.Bool
			b.Requests[0].Memory = infer.NewBuffer(nil, func(*infer.Buffer) { freed.Store(true) })
			v.Executor(0).Execute(b)
			if r := wait(t, results); !errors.Is(r.Err, infer.ErrWorkerLost) {
				t.Errorf("got %+v", r)
			}
			if n := len(w.resident.outputs); n != 0 {
				t.Errorf("%d resident tensors are left", n)
			}
			if b.Requests[0].Memory.Release(); !freed.Load() {
				t.Error("the request's memory is held")
			}
			eventually(t, "a restart", func() bool { return w.States()[0].Restarts > 0 })
		})
	}
}

// A request that has its final answer gets no other one: its caller may have made another
// request of it, and an answer that names one of its inputs would be that one's.
func TestLiarAnswersBehindTheLast(t *testing.T) {
	for _, kind := range []string{"an answer behind the last", "outputs behind the last"} {
		t.Run(kind, func(t *testing.T) {
			l := as("liar")
			l.Env = append(l.Env, lieEnv+"="+kind)
			w := start(t, Config{Local: []LocalWorker{l}, Backoff: time.Millisecond, KillAfter: 10 * time.Millisecond})
			v := load(t, w, spec(1, nil))
			b, results := newBatch(1, 4)
			v.Executor(0).Execute(b)
			r := wait(t, results)
			if !r.More || len(r.Responses) != 1 || !r.Responses[0].Response.Final {
				t.Errorf("got %+v", r)
			}
			r.Memory.Release()
			if r := wait(t, results); !errors.Is(r.Err, infer.ErrWorkerLost) {
				t.Errorf("got %+v behind the last answer", r)
			}
		})
	}
}

// A worker that says that it has unloaded a version, and owes the answer of its batch, is
// replaced: the batch ends, and nobody waits for ever.
func TestLiarUnloadsWithoutAnswer(t *testing.T) {
	l := as("liar")
	l.Env = append(l.Env, lieEnv+"=no answer")
	w := start(t, Config{Local: []LocalWorker{l}, Backoff: time.Millisecond, KillAfter: 10 * time.Millisecond, HealthTimeout: 500 * time.Millisecond})
	v := load(t, w, spec(1, nil))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	unload(t, v)
	if r := wait(t, results); infer.CodeOf(r.Err) != infer.Unavailable {
		t.Errorf("got %+v", r)
	}
	eventually(t, "a restart", func() bool { return w.States()[0].Restarts > 0 })
}

// A model that kills its worker while it loads is given up, and the others load.
func TestDeadlyLoad(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("liar")}, Backoff: time.Millisecond, KillAfter: 10 * time.Millisecond})
	deadly, harmless := spec(1, nil), spec(1, nil)
	deadly.Name = "deadly"
	result := make(chan error)
	go func() {
		_, err := w.Load(t.Context(), deadly)
		result <- err
	}()
	v := load(t, w, harmless)
	if err := <-result; !errors.Is(err, infer.ErrWorkerLost) || infer.CodeOf(err) != infer.Unavailable {
		t.Errorf("got %v", err)
	}
	if n := w.States()[0].Restarts; n < 2 {
		t.Errorf("%d restarts, want a new worker for each try", n)
	}
	// The liar has no such call; where its death is still being noticed none is needed.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Unload(ctx); err != nil && infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("got %v", err)
	}
}

// Parts of a batch's result come in order, and the instance is free after the last.
func TestParts(t *testing.T) {
	l := as("liar")
	l.Env = append(l.Env, lieEnv+"=parts")
	w := start(t, Config{Local: []LocalWorker{l}, KillAfter: 10 * time.Millisecond})
	v := load(t, w, spec(1, nil))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	r := wait(t, results)
	if !r.More || len(r.Responses) != 2 || r.Responses[0].Response.Final || len(r.Responses[0].Response.Outputs) != 1 ||
		infer.CodeOf(r.Responses[1].Err) != infer.NotFound || infer.ReasonOf(r.Responses[1].Err) != "" {
		t.Errorf("got %+v", r)
	}
	last := wait(t, results)
	if last.More || len(last.Responses) != 1 || !last.Responses[0].Response.Final {
		t.Errorf("got %+v", last)
	}
	r.Memory.Release()
	last.Memory.Release()
}
