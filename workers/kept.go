package workers

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// keptBatch is an execution that goes on when Execute has returned; it fits backend.Open.
// Locks are taken in this order: mu, then those of opens, keepWatch and the transport.
type keptBatch struct {
	x *execution

	mu    sync.Mutex // over the execution, from Keep on
	ended bool       // guarded by mu: the last result was sent
	freed bool       // guarded by mu: its instance takes other batches
	given bool       // guarded by mu: the inputs were given back
	told  bool       // guarded by mu: the gateway is to give them back, too
	read  bool       // guarded by mu: and it was not told yet
	watch []watched  // guarded by mu: by request
}

// Keep fits backend.Batch.
func (x *execution) Keep() (backend.Open, error) {
	switch {
	case x.kept != nil:
		return nil, x.misused(throughBatch)
	case !x.inst.keeps:
		return nil, x.misused("kept a batch, and its backend declares no open requests")
	case x.open == 0:
		return nil, x.misused("kept a batch that had all its answers")
	}
	if !x.cut {
		x.cutInputs()
	}
	k := &keptBatch{x: x, watch: make([]watched, len(x.requests))}
	now := infer.Now()
	for i := range k.watch {
		k.watch[i].heard = now
		if t := x.batch.Requests[i].Timeout; t > 0 {
			k.watch[i].deadline = x.began + t
		}
	}
	x.kept = k
	x.inst.transport.keep(x)
	x.inst.opens.add()
	k.mu.Lock()
	defer k.mu.Unlock()
	x.inst.worker.kept.add(k)
	k.flush() // what was answered before
	return k, nil
}

// leave is the end of Execute, whose error is the requests' that are open. It returns when the
// instance may take another batch.
func (k *keptBatch) leave(err error) {
	if err != nil {
		k.failAll(err)
	}
	k.x.inst.opens.free(k)
}

func (k *keptBatch) failAll(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		k.x.inst.log.Warn("a backend failed after it had answered every request", "error", err)
		return
	}
	for i := range k.x.requests {
		if !k.x.requests[i].answered {
			k.x.fail(i, err)
		}
	}
	k.flush()
}

// Requests fits backend.Open.
func (k *keptBatch) Requests() []backend.Request { return k.x.faces }

// Alloc fits backend.Open.
func (k *keptBatch) Alloc(n int64) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return nil, infer.Errorf(infer.Internal, "the batch has ended")
	}
	return k.x.alloc(n)
}

// Respond fits backend.Open.
func (k *keptBatch) Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.x.respond(k.x.index(i), outputs, params, final)
	if err == nil {
		w := &k.watch[i]
		if w.heard = infer.Now(); final && w.inferEnd == 0 {
			k.x.inferEnd = w.heard
		}
	}
	k.flush()
	return err
}

// Buffer fits backend.Memory.
func (k *keptBatch) Buffer(t *infer.Tensor) backend.Buffer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.x.Buffer(t)
}

// AllocIn fits backend.Memory.
func (k *keptBatch) AllocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return infer.Errorf(infer.Internal, "the batch has ended")
	}
	return k.x.allocIn(t, n, kind)
}

// Copy fits backend.Memory. Buffers are the caller's until the batch ends.
func (k *keptBatch) Copy(to, from backend.Buffer) error { return k.x.Copy(to, from) }

// Fail fits backend.Open.
func (k *keptBatch) Fail(i int, err error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.x.failOne(k.x.index(i), err)
	k.flush()
	return err
}

// RespondError fits backend.Open.
func (k *keptBatch) RespondError(i int, err error) (open bool, fault error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if open, fault = k.x.respondError(k.x.index(i), err); open {
		k.watch[i].heard = infer.Now()
	}
	k.flush()
	return open, fault
}

// InferDone fits backend.Open.
func (k *keptBatch) InferDone(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.x.index(i) >= 0 && !k.ended && !k.x.requests[i].answered {
		k.watch[i].inferEnd = infer.Now()
		k.x.inferEnd = k.watch[i].inferEnd
	}
}

// compute is how long the phases of request i took until now; zero where its backend did not
// say. The caller holds mu.
func (k *keptBatch) compute(i int) infer.ComputeTimes {
	end := k.watch[i].inferEnd
	if end == 0 {
		return infer.ComputeTimes{}
	}
	inputEnd := max(k.x.inputEnd, k.x.start)
	return infer.ComputeTimes{Input: inputEnd - k.x.start, Infer: max(end-inputEnd, 0), Output: infer.Now() - end}
}

// Watch fits backend.Open.
func (k *keptBatch) Watch(i int, f func(cause error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.x.index(i) >= 0 && !k.ended && !k.x.requests[i].answered {
		if k.watch[i].tell = f; k.watch[i].gone > 0 {
			k.tell(i, errCancelled(), true)
		}
	}
}

// Release fits backend.Open.
func (k *keptBatch) Release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.giveBack()
}

// ReleaseAll fits backend.Open.
func (k *keptBatch) ReleaseAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended || k.told {
		return
	}
	k.told, k.read = true, k.x.inst.connection.tellRead.Load()
	k.giveBack()
	k.sayRead()
}

// sayRead tells the gateway that the inputs are read, of a batch that is freed; the word that frees
// one says it as well. Where there is no memory for it the gateway keeps them until the batch ends,
// as it does of other batches. The caller holds mu.
func (k *keptBatch) sayRead() {
	if !k.read || !k.freed || k.ended {
		return
	}
	d := draft{result: wire.Result{ID: k.x.batch.ID, More: true, InputsRead: true}}
	if err := k.x.inst.transport.send(k.x, &d); err != nil {
		k.x.inst.log.Debug("the gateway was not told that a batch's inputs are read", "error", err)
	}
	k.read = false
}

// giveBack lets go of what the worker has for the inputs. The caller holds mu.
func (k *keptBatch) giveBack() {
	if k.ended || k.given {
		return
	}
	k.given = true
	x := k.x
	x.scratch, x.inputs = nil, nil
	x.releaseInPlace()
	for i := range x.requests {
		x.requests[i].inputs = nil
	}
	if !x.placed { // else outputs go there
		x.releaseRegions()
	}
	if x.source != nil {
		x.source.tensors = nil
	}
}

// flush sends errors that stand in the last result while requests are open, or ends the batch
// where none is. The caller holds mu.
func (k *keptBatch) flush() {
	x := k.x
	if k.ended {
		return
	}
	r := &x.final.result
	if x.open > 0 {
		if len(r.Responses) == 0 || allLost(r.Responses) { // soon the others fail so, too
			return
		}
		r.More = true
		if err := x.inst.transport.send(x, &x.final); err != nil {
			r.More = false // they go with others
			return
		}
		x.final.reset(x.batch.ID)
		return
	}
	if len(r.Responses) == len(x.requests) && allLost(r.Responses) {
		// None had an answer: the batch may be executed again.
		x.open, r.Responses = len(x.requests), r.Responses[:1]
		first := r.Responses[0]
		x.finish(infer.Refusef(first.Code, first.Reason, "%s", first.Err))
		x.open = 0
	} else {
		x.finish(nil)
	}
	for i := range x.requests {
		atomic.StoreUint32(&x.requests[i].gone, 1) // their flags are soon another batch's
	}
	if err := x.inst.transport.send(x, &x.final); err != nil {
		x.inst.log.Error("a batch's result could not be sent", "error", err)
	}
	x.release()
	k.ended = true
	x.inst.worker.kept.remove(k)
	x.inst.opens.remove(k)
}

// allLost says that these are failures of what an instance has lost.
func allLost(responses []wire.Response) bool {
	return !slices.ContainsFunc(responses, func(r wire.Response) bool { return r.Reason != infer.ReasonWorkerLost })
}

// sendFree says that the instance takes another batch. The caller holds mu.
func (k *keptBatch) sendFree() error {
	d := draft{result: wire.Result{ID: k.x.batch.ID, More: true, Free: true, InputsRead: k.read}}
	err := k.x.inst.transport.send(k.x, &d)
	k.read = k.read && err != nil
	return err
}

// opens are the batches that an instance has kept.
type opens struct {
	most    int           // requests of those that were freed
	changed chan struct{} // one token: a batch has ended. The instance's goroutine waits

	mu       sync.Mutex
	batches  int // guarded by mu
	requests int // guarded by mu: of those that were freed
}

// openRequests is how many open requests an instance of a model may have: a sequence's next
// request needs the end of the one before it.
func openRequests(info backend.Info, c *modelconfig.ModelConfig) int {
	if c.GetSequenceBatching() != nil {
		return 0
	}
	return min(max(info.OpenRequests, 0), backend.MaxOpenRequests)
}

func (o *opens) add() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.batches++
}

func (o *opens) remove(k *keptBatch) {
	o.mu.Lock()
	o.batches--
	if k.freed {
		o.requests -= len(k.x.requests)
	}
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// freeAgain is when a batch is freed again that could not be for want of memory.
const freeAgain = 20 * time.Millisecond

// free returns when k has ended or its requests are among those of freed batches. Every open
// request ends: keepWatch sees to that.
func (o *opens) free(k *keptBatch) {
	for {
		done, err := o.take(k)
		switch {
		case done:
			return
		case err == nil:
			<-o.changed
			continue
		}
		t := time.NewTimer(freeAgain)
		select {
		case <-o.changed:
		case <-t.C:
		}
		t.Stop()
	}
}

func (o *opens) take(k *keptBatch) (done bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.x.requests)
	if k.ended {
		return true, nil
	}
	o.mu.Lock()
	room := o.requests+n <= o.most
	if room {
		o.requests += n
	}
	o.mu.Unlock()
	if !room {
		return false, nil
	}
	if err := k.sendFree(); err != nil {
		o.mu.Lock()
		o.requests -= n
		o.mu.Unlock()
		return false, fmt.Errorf("free the instance: %w", err)
	}
	k.freed = true
	return true, nil
}

// wait returns when no batch is kept any more.
func (o *opens) wait() {
	for {
		o.mu.Lock()
		n := o.batches
		o.mu.Unlock()
		if n == 0 {
			return
		}
		<-o.changed
	}
}
