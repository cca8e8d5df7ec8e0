package workers_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// keeper is a gateway with one instance whose backend keeps every batch.
type keeper struct {
	*gateway
	stream *streamOf // nil: batches go by the lane
	opens  chan backend.Open
	flags  map[uint64][]byte
	open   uint32 // open requests that the worker said

	compute infer.ComputeTimes // of the last result
}

type keeperConfig struct {
	open    int // requests that the backend declares
	stream  bool
	config  workers.Config
	model   *modelconfig.ModelConfig
	execute func(b backend.Batch) error // in place of keeping
	log     *slog.Logger
}

func startKeeper(t *testing.T, kc keeperConfig) *keeper {
	t.Helper()
	k := &keeper{opens: make(chan backend.Open, 64), flags: map[uint64][]byte{}}
	s := &scripted{open: kc.open}
	if kc.execute == nil {
		kc.execute = func(b backend.Batch) error {
			o, err := b.Keep()
			if err == nil {
				k.opens <- o
			}
			return err
		}
	}
	if kc.model == nil {
		kc.model = fp32Config(nil)
	}
	s.execute.Store(kc.execute)
	deps := scriptedDeps(s)
	deps.Log = kc.log
	k.gateway = startLocal(t, kc.config, deps, 16<<20)
	k.hello(t, !kc.stream)
	k.open = must(k.client.Load(ctx(t), loadRequest(1, kc.model, 0)))(t).GetOpenRequests()
	if kc.stream {
		k.stream = openStream(t, k.client)
	}
	return k
}

// post gives the instance a batch of requests with 4 floats each.
func (k *keeper) postBatch(t *testing.T, b *wire.Batch, data []byte) {
	t.Helper()
	if k.stream != nil {
		if err := k.stream.call.Send(&worker.ExecuteRequest{Batch: wire.BatchMessage(b, 1, 0), Tensors: [][]byte{data}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	p := k.layOut(t, b, data)
	k.flags[b.ID] = p.flags
	k.gateway.post(0, p)
}

func (k *keeper) send(t *testing.T, id uint64, requests int) (data []byte) {
	t.Helper()
	b, data := rowsBatch(id, requests, 4)
	if k.stream != nil {
		b.Inputs[0].Segments[0].Length = int64(len(data))
	}
	k.postBatch(t, b, data)
	return data
}

func (k *keeper) cancel(t *testing.T, id uint64, request int) {
	t.Helper()
	if k.stream != nil {
		if err := k.stream.call.Send(&worker.ExecuteRequest{Cancel: &worker.Cancel{Batch: id, Request: uint32(request)}}); err != nil {
			t.Fatal(err)
		}
		return
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&k.flags[id][4*request])), 1)
}

// next is the next result, in words, and the data of its outputs.
func (k *keeper) next(t *testing.T) (text string, data []byte) {
	t.Helper()
	var res *wire.Result
	if k.stream != nil {
		var m *worker.ExecuteResponse
		m, res = k.stream.next(t)
		data = bytes.Join(m.Tensors, nil)
	} else {
		c, r := k.result(t)
		res = r
		for i := range r.Responses {
			for _, o := range r.Responses[i].Outputs {
				data = append(data, k.data(t, o)...)
			}
		}
		k.lane.Release(c.Token)
	}
	k.compute = res.Compute
	text = fmt.Sprint(res.ID)
	if res.More {
		text += " more"
	}
	if res.Free {
		text += " free"
	}
	if res.InputsRead {
		text += " read"
	}
	for _, r := range res.Responses {
		text += fmt.Sprintf(" %d:", r.Index)
		switch {
		case r.Err != "":
			text += r.Code.String() + "/" + string(r.Reason)
			if r.GoesOn {
				text += " on"
			}
		case r.Final:
			text += "final"
		default:
			text += "part"
		}
	}
	if res.Err != "" {
		text += " " + res.Err
	}
	return text, data
}

func (k *keeper) want(t *testing.T, want string) (data []byte) {
	t.Helper()
	got, data := k.next(t)
	if got != want {
		t.Errorf("got result %q, want %q", got, want)
	}
	return data
}

func (k *keeper) kept(t *testing.T) backend.Open {
	t.Helper()
	select {
	case o := <-k.opens:
		return o
	case <-time.After(10 * time.Second):
		t.Fatal("the backend got no batch")
		return nil
	}
}

// nothing says that no result comes for a while.
func (k *keeper) nothing(t *testing.T) {
	t.Helper()
	select {
	case o := <-k.opens:
		t.Errorf("the instance got a batch: %v", o)
	case <-time.After(50 * time.Millisecond):
	}
}

// echoTo answers a request with its input.
func echoTo(o backend.Open, i int, final bool) error {
	in := o.Requests()[i].Inputs()[0]
	in.Name = "OUTPUT0"
	return o.Respond(i, []infer.Tensor{in}, nil, final)
}

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func eachWay(t *testing.T, test func(t *testing.T, stream bool)) {
	t.Run("lane", func(t *testing.T) { test(t, false) })
	t.Run("stream", func(t *testing.T) { test(t, true) })
}

// A batch that was kept frees its instance; batches are answered in any order, requests of each
// one by one, and the last answer ends its batch.
func TestKeptBatches(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		k := startKeeper(t, keeperConfig{open: 8, stream: stream})
		if k.open != 8 {
			t.Errorf("the worker says %d open requests, want 8", k.open)
		}
		first := k.send(t, 1, 2)
		one := k.kept(t)
		k.want(t, "1 more free")
		second := k.send(t, 2, 1)
		two := k.kept(t)
		k.want(t, "2 more free")
		fine(t, echoTo(one, 1, false))
		if data := k.want(t, "1 more 1:part"); !bytes.Equal(data, first[16:]) {
			t.Error("the part is not the input")
		}
		fine(t, echoTo(two, 0, true))
		if data := k.want(t, "2 0:final"); !bytes.Equal(data, second) {
			t.Error("the second batch's answer is not its input")
		}
		fine(t, echoTo(one, 1, true))
		k.want(t, "1 more 1:final")
		mem := must(one.Alloc(16))(t)
		copy(mem, first)
		fine(t, one.Respond(0, []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{1, 4}, Data: mem}}, nil, true))
		if data := k.want(t, "1 0:final"); !bytes.Equal(data, first[:16]) {
			t.Error("the first batch's answer is not its input")
		}
		if err := echoTo(two, 0, true); err == nil {
			t.Error("an answer behind the last one succeeds")
		}
		if _, err := one.Alloc(1); err == nil {
			t.Error("a batch that has ended has memory")
		}
	})
}

// The instance gets no batch before its open requests have room, and one that has more than
// there is room for is free when it has ended.
func TestKeptBatchesAreBounded(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		k := startKeeper(t, keeperConfig{open: 2, stream: stream})
		k.send(t, 1, 2)
		one := k.kept(t)
		k.want(t, "1 more free")
		k.send(t, 2, 1)
		two := k.kept(t)
		k.send(t, 3, 3) // which a gateway doesn't
		k.nothing(t)
		fine(t, echoTo(one, 0, true))
		k.want(t, "1 more 0:final")
		k.nothing(t) // all of a batch count until its end
		fine(t, one.Fail(1, infer.Errorf(infer.NotFound, "no")))
		k.want(t, "1 1:not found/")
		k.want(t, "2 more free")
		three := k.kept(t)
		k.send(t, 4, 1)
		k.nothing(t)
		fine(t, echoTo(two, 0, true))
		k.want(t, "2 0:final")
		k.nothing(t)
		for i := range 3 {
			fine(t, echoTo(three, i, true))
		}
		k.want(t, "3 more 0:final")
		k.want(t, "3 more 1:final")
		k.want(t, "3 2:final")
		fine(t, echoTo(k.kept(t), 0, true))
		if text, _ := k.next(t); text == "4 more free" {
			k.want(t, "4 0:final")
		} else if text != "4 0:final" {
			t.Errorf("got %q", text)
		}
	})
}

// Cancellation and a timeout of its own reach a kept request as a call, and cancellation as a
// flag.
func TestKeptRequestsAreWatched(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		k := startKeeper(t, keeperConfig{open: 8, stream: stream})
		b, data := rowsBatch(1, 3, 4)
		b.Requests[2].Timeout = int64(30 * time.Millisecond)
		if stream {
			b.Inputs[0].Segments[0].Length = int64(len(data))
		}
		k.postBatch(t, b, data)
		o := k.kept(t)
		k.want(t, "1 more free")
		told := make(chan string, 16)
		for i := range 3 {
			o.Watch(i, func(cause error) { told <- fmt.Sprint(i, " ", infer.ReasonOf(cause), " ", o.Requests()[i].Cancelled()) })
		}
		if got := receive(t, told); got != "2 deadline false" {
			t.Errorf("told %q of the timeout", got)
		}
		k.cancel(t, 1, 1)
		if got := receive(t, told); got != "1 cancelled true" {
			t.Errorf("told %q of the cancellation", got)
		}
		k.cancel(t, 1, 2)
		if got := receive(t, told); got != "2 cancelled true" {
			t.Errorf("told %q of the cancellation", got)
		}
		o.Watch(2, func(error) { told <- "late" })
		if got := receive(t, told); got != "late" {
			t.Errorf("told %q, who watches a request that is cancelled", got)
		}
		for i := range 3 {
			fine(t, o.Fail(i, infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "gone")))
		}
		k.want(t, "1 more 0:cancelled/cancelled")
		k.want(t, "1 more 1:cancelled/cancelled")
		k.want(t, "1 2:cancelled/cancelled")
		if len(told) > 0 {
			t.Errorf("told %q", <-told)
		}
	})
}

func receive(t *testing.T, from chan string) string {
	t.Helper()
	select {
	case s := <-from:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told")
		return ""
	}
}

// A request of which nothing is heard is failed, and the log names its model. What its backend
// answers later is dropped. One that has a timeout of its own has that, and time to end.
func TestSilentRequestsAreFailed(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		const silence, grace = time.Hour, 30 * time.Second
		var log synced
		k := startKeeper(t, keeperConfig{open: 8, stream: stream, config: workers.Config{OpenTimeout: silence},
			log: slog.New(slog.NewTextHandler(&log, nil))})
		b, data := rowsBatch(1, 4, 4)
		b.Requests[1].Timeout = int64(10 * time.Minute)
		b.Requests[2].Timeout = int64(2 * time.Hour)
		if stream {
			b.Inputs[0].Segments[0].Length = int64(len(data))
		}
		k.postBatch(t, b, data)
		o := k.kept(t)
		told := make(chan string, 16)
		for i := range 4 {
			o.Watch(i, func(cause error) { told <- fmt.Sprint(i, " ", infer.ReasonOf(cause)) })
		}
		k.want(t, "1 more free")
		workers.Look(o, 9*time.Minute)
		workers.Look(o, 11*time.Minute)
		if got := receive(t, told); got != "1 deadline" {
			t.Errorf("told %q", got)
		}
		workers.Look(o, 11*time.Minute+grace/2)
		workers.Look(o, 11*time.Minute+grace)
		k.want(t, "1 more 1:internal/")
		if got := receive(t, told); got != "1 " {
			t.Errorf("told %q", got)
		}
		fine(t, echoTo(o, 0, false))
		k.want(t, "1 more 0:part")
		workers.LookWhenDue(o, 3) // which 0 isn't yet
		k.want(t, "1 more 3:internal/")
		if got := receive(t, told); got != "3 " {
			t.Errorf("told %q", got)
		}
		if got := log.String(); !strings.Contains(got, "model=m version=1") || !strings.Contains(got, "request_id=r") {
			t.Errorf("the log says %q", got)
		}
		fine(t, echoTo(o, 1, true))
		fine(t, o.Fail(1, errors.New("late")))
		k.cancel(t, 1, 2)
		if got := receive(t, told); got != "2 cancelled" {
			t.Errorf("told %q", got)
		}
		workers.Look(o, grace+time.Second)
		k.want(t, "1 more 2:internal/")
		if !o.Requests()[1].Cancelled() {
			t.Error("a request that was failed is not cancelled")
		}
		fine(t, echoTo(o, 0, true))
		k.want(t, "1 0:final")
		if len(told) > 0 {
			t.Errorf("told %q", <-told)
		}
	})
}

// synced is a buffer for several goroutines.
type synced struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.String()
}

// Unload waits for open requests, and until then says that it does.
func TestUnloadWaitsForOpenRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		k := startKeeper(t, keeperConfig{open: 8, stream: stream})
		k.send(t, 1, 1)
		o := k.kept(t)
		k.want(t, "1 more free")
		done := make(chan error, 1)
		go func() {
			_, err := k.client.Unload(ctx(t), &worker.UnloadRequest{Handle: 1})
			done <- err
		}()
		select {
		case err := <-done:
			t.Errorf("unloaded with an open request: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		fine(t, echoTo(o, 0, true))
		k.want(t, "1 0:final")
		fine(t, <-done)
	})
}

// An error or a panic of Execute is that of the requests that are open then.
func TestExecuteFailsWhatItKept(t *testing.T) {
	for name, end := range map[string]func() error{
		"error": func() error { return infer.Errorf(infer.Unavailable, "no") },
		"panic": func() error { panic("asked") },
	} {
		t.Run(name, func(t *testing.T) {
			k := startKeeper(t, keeperConfig{open: 8, execute: func(b backend.Batch) error {
				o, err := b.Keep()
				if err == nil {
					err = echoTo(o, 0, true)
				}
				if err != nil {
					return err
				}
				return end()
			}})
			k.send(t, 1, 2)
			k.want(t, "1 more 0:final")
			if got, _ := k.next(t); got != "1 1:unavailable/" && got != "1 1:internal/" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// The phase "compute infer" of a request ends where its backend says, else with its answer.
func TestComputeOfKeptRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		const pause = 20 * time.Millisecond
		k := startKeeper(t, keeperConfig{open: 8, stream: stream})
		wait := func() {
			tick := time.NewTimer(pause)
			<-tick.C
		}
		check := func(what string, infers, outputs time.Duration) {
			t.Helper()
			if c := k.compute; c.Infer < int64(infers) || c.Output < int64(outputs) || c.Input < 0 {
				t.Errorf("%s: %+v, want at least %v and %v", what, c, infers, outputs)
			}
		}
		k.send(t, 1, 3)
		o := k.kept(t)
		k.want(t, "1 more free")
		wait()
		o.InferDone(0)
		o.InferDone(7)
		wait()
		fine(t, echoTo(o, 0, true))
		k.want(t, "1 more 0:final")
		check("a request whose end was said", pause, pause)
		fine(t, echoTo(o, 1, true))
		k.want(t, "1 more 1:final")
		if k.compute != (infer.ComputeTimes{}) {
			t.Errorf("a request whose end was not said: %+v", k.compute)
		}
		o.InferDone(2)
		wait()
		fine(t, echoTo(o, 2, true))
		k.want(t, "1 2:final")
		check("a batch, which computes as long as its last request", 2*pause, pause)
		o.InferDone(2) // it has ended
		k.send(t, 2, 2)
		o = k.kept(t)
		k.want(t, "2 more free")
		o.InferDone(0)
		fine(t, echoTo(o, 0, true))
		k.want(t, "2 more 0:final")
		wait()
		fine(t, echoTo(o, 1, true))
		k.want(t, "2 1:final")
		check("a batch that ends with a request whose end was not said", pause, 0)
	})
}

// A batch that was kept is used through what Keep gave, and who declares no open requests keeps
// none.
func TestKeepIsChecked(t *testing.T) {
	k := startKeeper(t, keeperConfig{open: 8, execute: func(b backend.Batch) error {
		fails := func(err error) {
			t.Helper()
			if infer.CodeOf(err) != infer.Internal {
				t.Errorf("got %v", err)
			}
		}
		in := b.Inputs()[0]
		fine(t, b.Respond(0, []infer.Tensor{in}, nil, true))
		o, err := b.Keep()
		fine(t, err)
		_, err = b.Keep()
		fails(err)
		_, err = b.Alloc(1)
		fails(err)
		_, err = b.AllocOutput("OUTPUT0", 1)
		fails(err)
		fails(b.Outputs(nil))
		fails(b.Respond(1, nil, nil, true))
		fails(b.Repeat(1, nil))
		fails(b.Fail(1, errors.New("no")))
		fails(o.Respond(7, nil, nil, true))
		fails(o.Fail(-1, errors.New("no")))
		o.Watch(7, func(error) {})
		b.InputDone()
		b.InferDone()
		o.Release()
		if n := len(o.Requests()[1].Inputs()); n > 0 {
			t.Errorf("%d inputs are left after Release", n)
		}
		return o.Fail(1, errors.New("no"))
	}})
	k.send(t, 1, 2)
	k.want(t, "1 more 0:final") // answered before
	k.want(t, "1 1:internal/")
	none := startKeeper(t, keeperConfig{open: 0})
	none.send(t, 1, 1)
	if got, _ := none.next(t); !strings.Contains(got, "declares no open requests") || none.open != 0 {
		t.Errorf("got %q with %d open requests", got, none.open)
	}
}

// ReleaseAll tells the gateway once, with the word that frees the batch or behind it, and what is
// answered then names no input.
func TestReleaseAllTellsTheGateway(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		early := make(chan backend.Open, 1)
		k := startKeeper(t, keeperConfig{open: 8, stream: stream, execute: func(b backend.Batch) error {
			o, err := b.Keep()
			if err == nil {
				o.ReleaseAll()
				early <- o
			}
			return err
		}})
		k.send(t, 1, 2)
		one := <-early
		k.want(t, "1 more free read")
		one.ReleaseAll()
		if n := len(one.Requests()[0].Inputs()); n > 0 {
			t.Errorf("%d inputs are left", n)
		}
		for i := range 2 {
			fine(t, one.Respond(i, []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{1, 1}, Data: make([]byte, 4)}}, nil, true))
		}
		k.want(t, "1 more 0:final")
		k.want(t, "1 1:final")
		one.ReleaseAll() // behind the end
		late := startKeeper(t, keeperConfig{open: 8, stream: stream})
		late.send(t, 7, 1)
		o := late.kept(t)
		late.want(t, "7 more free")
		o.Release()
		o.ReleaseAll()
		late.want(t, "7 more read")
		fine(t, o.Fail(0, infer.Errorf(infer.NotFound, "no")))
		late.want(t, "7 0:not found/")
	})
}

// A gateway that did not ask for word of inputs hears none.
func TestReleaseAllOfAnOldGateway(t *testing.T) {
	k := startKeeper(t, keeperConfig{open: 8})
	must(k.client.Hello(ctx(t), &worker.HelloRequest{Protocol: workers.Protocol, Lane: []uint32{wire.Table}}))(t)
	k.send(t, 1, 1)
	o := k.kept(t)
	k.want(t, "1 more free")
	o.ReleaseAll()
	fine(t, o.Fail(0, infer.Errorf(infer.NotFound, "no")))
	k.want(t, "1 0:not found/")
}

// Errors may be among the answers of a decoupled model. A gateway that did not ask for them has the first as the end.
func TestErrorsAmongAnswers(t *testing.T) {
	not := infer.Errorf(infer.NotFound, "not this one")
	one := func(o backend.Open, final bool) error {
		return o.Respond(0, []infer.Tensor{{Name: "OUTPUT0", Datatype: infer.FP32, Shape: []int64{1, 1}, Data: make([]byte, 4)}}, nil, final)
	}
	eachWay(t, func(t *testing.T, stream bool) {
		decoupled := fp32Config(nil)
		decoupled.ModelTransactionPolicy = &modelconfig.ModelTransactionPolicy{Decoupled: true}
		k := startKeeper(t, keeperConfig{open: 8, stream: stream, model: decoupled})
		k.send(t, 1, 1)
		o := k.kept(t)
		k.want(t, "1 more free")
		fine(t, one(o, false))
		k.want(t, "1 more 0:part")
		for range 2 {
			if open, err := o.RespondError(0, not); err != nil || !open {
				t.Errorf("open %v, %v", open, err)
			}
			k.want(t, "1 more 0:not found/ on")
		}
		fine(t, one(o, true))
		k.want(t, "1 0:final")
		if _, err := o.RespondError(0, not); err == nil {
			t.Error("an error behind the last answer succeeds")
		}
		must(k.client.Hello(ctx(t), &worker.HelloRequest{Protocol: workers.Protocol, InputsRead: true, Lane: []uint32{wire.Table}}))(t)
		k.send(t, 2, 1)
		o = k.kept(t)
		k.want(t, "2 more free")
		if open, err := o.RespondError(0, not); err != nil || open {
			t.Errorf("of an old gateway: open %v, %v", open, err)
		}
		k.want(t, "2 0:not found/")
		ordinary := startKeeper(t, keeperConfig{open: 8, stream: stream})
		ordinary.send(t, 3, 1)
		o = ordinary.kept(t)
		ordinary.want(t, "3 more free")
		if open, err := o.RespondError(0, not); err != nil || open {
			t.Errorf("of a model that is not decoupled: open %v, %v", open, err)
		}
		ordinary.want(t, "3 0:not found/")
	})
}

// A sequence's next request needs the end of the one before it: the instance is free then.
func TestSequencesFreeTheirInstanceAtTheEnd(t *testing.T) {
	c := fp32Config(nil)
	c.SchedulingChoice = &modelconfig.ModelConfig_SequenceBatching{SequenceBatching: &modelconfig.ModelSequenceBatching{}}
	k := startKeeper(t, keeperConfig{open: 8, model: c})
	if k.open != 0 {
		t.Errorf("the worker says %d open requests, want 0", k.open)
	}
	k.send(t, 1, 1)
	o := k.kept(t)
	k.send(t, 2, 1)
	k.nothing(t)
	fine(t, echoTo(o, 0, true))
	k.want(t, "1 0:final")
	fine(t, echoTo(k.kept(t), 0, true))
	k.want(t, "2 0:final")
}

// Answers come from any number of goroutines, while Execute runs and later.
func TestKeptBatchesInParallel(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		const batches, requests = 30, 8
		var answering sync.WaitGroup
		k := startKeeper(t, keeperConfig{open: 5 * requests, stream: stream, execute: func(b backend.Batch) error {
			o, err := b.Keep()
			if err != nil {
				return err
			}
			for i := range o.Requests() {
				answering.Go(func() {
					for n := range 3 {
						fine(t, echoTo(o, i, n == 2))
					}
				})
			}
			return nil
		}})
		finals, ends, next := 0, 0, uint64(1)
		want := k.send(t, next, requests)
		for ends < batches {
			text, data := k.next(t)
			free := strings.Contains(text, "free")
			last := !strings.Contains(text, "more")
			finals += strings.Count(text, "final")
			if last {
				ends++
			}
			if !free && (len(data) != 16 || !bytes.Contains(want, data)) {
				t.Fatalf("%s: an answer of %d bytes that is no input", text, len(data))
			}
			if (free || last && strings.HasPrefix(text, fmt.Sprint(next, " "))) && next < batches {
				if last || free {
					next++
					k.send(t, next, requests)
				}
			}
		}
		answering.Wait()
		if finals != batches*requests {
			t.Errorf("%d final answers, want %d", finals, batches*requests)
		}
	})
}

// When the gateway has gone, who watches a request is told, and the worker ends once it is
// answered.
func TestKeptRequestsOfALostGateway(t *testing.T) {
	eachWay(t, func(t *testing.T, stream bool) {
		k := startKeeper(t, keeperConfig{open: 8, stream: stream})
		k.send(t, 1, 1)
		o := k.kept(t)
		k.want(t, "1 more free")
		told := make(chan string, 1)
		o.Watch(0, func(cause error) { told <- string(infer.ReasonOf(cause)) })
		fine(t, k.conns.Close())
		if got := receive(t, told); got != "cancelled" {
			t.Errorf("told %q", got)
		}
		_ = o.Fail(0, errors.New("gone"))
		k.wait(t)
	})
}
