package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// errStopped is the end of a transport.
var errStopped = errors.New("the instance is stopped")

// instance is one model instance and its goroutine.
type instance struct {
	worker     *Worker
	connection *connection
	log        *slog.Logger
	spec       backend.InstanceSpec
	model      backend.Model
	modelName  string
	transport  transport
	decoupled  bool   // responses leave at once
	iterative  bool   // requests may ask to be executed again
	gpu        *gpu   // in whose memory tensors may lie; nil: they lie on the host
	handle     uint64 // of its model, on the connection
	index      uint32 // among its model's instances
	scattered  scattered

	keeps bool  // batches may be kept
	opens opens // that were

	passes bool   // an answer may name an input of its request
	apart  bool   // requests of a batch may be executed one by one
	choice choice // whether they are; the goroutine's

	made       atomic.Pointer[backend.Instance] // nil: it is not made yet
	executions atomic.Uint64
	done       chan struct{} // closed when the goroutine has ended
	closeErr   error         // of the backend's Close; valid after done
}

// run makes the instance, reports to ready, and executes batches until the transport
// is closed. The goroutine keeps its thread to itself, and the thread ends with it.
func (inst *instance) run(ctx context.Context, ready chan<- error) {
	runtime.LockOSThread()
	defer close(inst.done)
	inst.worker.countThreads(1)
	defer inst.worker.countThreads(-1)
	if err := keepTime(); err != nil {
		inst.log.Warn("the instance's delays may be late", "error", err)
	}
	made, err := inst.make(ctx)
	if err == nil {
		inst.made.Store(&made)
	}
	ready <- err
	if err != nil {
		return
	}
	x := &execution{inst: inst}
	for {
		if err := inst.transport.receive(x); err != nil {
			if err != errStopped {
				inst.connection.corrupt(err)
			}
			inst.opens.wait()
			inst.closeErr = inst.closeBackend(made)
			return
		}
		if inst.execute(x, made); x.kept != nil {
			x = &execution{inst: inst}
		}
	}
}

// countThreads tells who cares that n more instances have a thread.
func (w *Worker) countThreads(n int) {
	w.threadsMu.Lock()
	defer w.threadsMu.Unlock()
	w.threads += n
	if w.deps.Instances != nil {
		w.deps.Instances(w.threads)
	}
}

// keepTime gives the calling thread exact timers, for backends that wait and for what waits
// on a full arena. Threads that are made for those which are locked have late ones (cmd/sluice-worker).
func keepTime() error {
	const slack = 50 * time.Microsecond // the kernel's default
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	return nil
}

func (inst *instance) make(ctx context.Context) (made backend.Instance, err error) {
	defer inst.recovered("making an instance", &err)
	return inst.model.NewInstance(ctx, inst.spec)
}

func (inst *instance) closeBackend(made backend.Instance) (err error) {
	defer inst.recovered("closing an instance", &err)
	return made.Close()
}

// execute takes one decoded batch to its final result, or to where its instance is free.
func (inst *instance) execute(x *execution, made backend.Instance) {
	err := x.prepare()
	switch {
	case err != nil || x.open == 0:
	case x.allCancelled():
		err = errCancelled()
	case x.apart:
		rows := inst.executeApart(x, made)
		inst.executions.Add(1)
		x.measure(rows)
	default:
		err = inst.call(x, made)
		inst.executions.Add(1)
		if err == nil {
			x.measure(x.batch.Rows)
		}
	}
	if x.kept != nil {
		x.kept.leave(err)
		return
	}
	x.finish(err)
	if err := inst.transport.send(x, &x.final); err != nil {
		inst.log.Error("a batch's result could not be sent", "error", err)
	}
	x.release()
}

func (inst *instance) call(x *execution, made backend.Instance) (err error) {
	defer inst.recovered("a batch", &err)
	return made.Execute(x)
}

// recovered turns a panic of the backend into an error.
func (inst *instance) recovered(doing string, err *error) {
	v := recover()
	if v == nil {
		return
	}
	inst.worker.faults.Add(1)
	inst.log.Error("a backend panicked", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	*err = infer.Errorf(infer.Internal, "the model's backend failed in %s", doing)
}
