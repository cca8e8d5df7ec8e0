package client

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// busyEars has other things to do: it reads results when it is let.
type busyEars struct {
	let  chan struct{}
	runs sync.WaitGroup
}

func (e *busyEars) Attach(_ int, s Source) error {
	e.runs.Go(func() {
		<-e.let
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for more := true; more; <-tick.C {
			more, _ = s.Run()
		}
	})
	return nil
}

func (e *busyEars) Detach(int) {}

// A worker that has unloaded a version has answered its last batch before, and says so on another
// way than the answer's: who is told of it first must not take the answer for a lie.
func TestUnloadOvertakesTheLastAnswer(t *testing.T) {
	ears := &busyEars{let: make(chan struct{})}
	t.Cleanup(ears.runs.Wait) // behind the workers' end
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Ears: ears})
	beside := load(t, w, spec(1, nil))
	v := load(t, w, spec(1, map[string]string{"execute_delay_ms": "1"}))
	b, results := newBatch(1, 4)
	v.Executor(0).Execute(b)
	unloaded := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		unloaded <- v.Unload(ctx)
	}()
	var r *infer.Result
	select {
	case err := <-unloaded:
		t.Errorf("unloaded while a batch is in flight: %v", err)
		unloaded <- err
	case r = <-results:
		t.Errorf("the batch has ended before its answer was read: %v", r.Err)
	case <-time.After(300 * time.Millisecond):
	}
	close(ears.let)
	if r == nil {
		r = wait(t, results)
	}
	if r.Err != nil {
		t.Errorf("the batch was answered, and its caller hears: %v", r.Err)
	}
	r.Memory.Release()
	if err := <-unloaded; err != nil {
		t.Error(err)
	}
	b, results = newBatch(1, 4)
	beside.Executor(0).Execute(b)
	r = wait(t, results)
	if r.Err != nil {
		t.Errorf("another version of the worker: %v", r.Err)
	}
	r.Memory.Release()
	if n := w.States()[0].Restarts; n != 0 {
		t.Errorf("the worker was restarted %d times", n)
	}
	unload(t, beside)
}
