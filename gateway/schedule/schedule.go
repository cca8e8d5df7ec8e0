package schedule

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Scheduler is the queue of one model version: requests in, batches to instances,
// answers back to the goroutine that waits. Do is called by any number of goroutines.
type Scheduler interface {
	Starter
	Faulty
	// Do queues req, waits for its answers and calls send for each on this goroutine.
	// It returns nil once the final one was sent. It returns an error of infer (queue
	// full, timed out, stopping, the model's failure) or ctx's cause as Cancelled when
	// the caller left; its request is then out of the queue, or flagged as cancelled to
	// the instance that has it. After Do returned, memory under req is held by the
	// reference of the batch only. After an error an instance may still read req: its
	// struct is not to be used for another request.
	Do(ctx context.Context, req *infer.Request, send infer.SendFunc) error
	// InstanceDown takes an instance out of service: it gets no batch until
	// InstanceUp. Batches that it had end through their Deliver, before InstanceUp. A
	// batch that ends with infer.ErrWorkerLost implies InstanceDown.
	InstanceDown(i int)
	InstanceUp(i int)
	// Ready counts the instances in service.
	Ready() int
	// Busy counts the instances that have a batch.
	Busy() int
	// Pending counts requests that wait for an instance.
	Pending() int
	// Turn waits, where answers keep the order of their requests, until every request that
	// was queued before has been answered. Its error is that of a caller who left.
	Turn(ctx context.Context, req *infer.Request) error
	// Drain refuses new requests (Unavailable, stopping), waits until the queued ones
	// and those in flight are answered or ctx ends, then fails what is left.
	Drain(ctx context.Context) error
}

// Faulty is a Scheduler that a panic, or the end of its workers, may leave unable to serve.
type Faulty interface {
	// Fault says why no request can be served now; nil: they can. Internal: a panic, in other words
	// than its own. Unavailable: no instance has been in service for Deps.WorkerWait. Both may end
	// without a new scheduler.
	Fault() error
}

// Starter starts requests for whose answers nobody needs to wait.
type Starter interface {
	// Start queues req as Do does and returns; to has the answers, and Done what Do would
	// return, maybe before Start returns. When ctx ends, the request is taken out as there.
	// False: nothing has happened, and nobody but Do may serve this request.
	Start(ctx context.Context, req *infer.Request, to infer.Sink) bool
}

// Memory is where batches are laid out; shm.Arena fits.
type Memory interface {
	// Alloc takes n bytes, aligned to 64. shm.ErrFull's Reason is memory_full.
	Alloc(n int64) ([]byte, error)
	Free(b []byte)
	// Holds says that b lies in this memory, so a batch can name it without a copy.
	Holds(b []byte) bool
}

// Observer hears what a scheduler does, for statistics and metrics; stats.Model fits.
// Its methods are cheap and may be called from any goroutine.
type Observer interface {
	// Executed: a batch of so many requests and rows came back.
	Executed(requests, rows int, c infer.ComputeTimes)
	// Queued: the number of requests that wait changed by delta. A call that panics has
	// counted nothing; it is made again.
	Queued(delta int)
}
