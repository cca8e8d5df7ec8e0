// Package pipeline is the order of a request's steps, and nothing else: what a step
// does lives in the package it calls. A front end calls Open with the headers, decodes
// the body, calls Start, and Close when the call has ended; a step of an ensemble begins
// with Step.
//
// A Pipeline has no state of its own and no goroutine. The answer of a request that was
// started is made by whoever brings it, so what runs from then on must not block:
// presenting, statistics, the end of traces, Close. With Infer, which is Start for callers
// that wait, it stays on the goroutine of its front end. Everything a request waits for
// ends when its context does.
package pipeline

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/gateway/classification"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/tracing"
)

// Model is one model version, pinned; gateway/repository fits it. Its Runner's Current is nil
// where no answers are kept.
type Model interface {
	cache.Runner
	// Start is schedule.Starter's.
	Start(ctx context.Context, req *infer.Request, to infer.Sink) bool
	// VersionText is the version's number.
	VersionText() string
	// Validate checks the request against the model and sets its Rows.
	Validate(req *infer.Request) error
	// Places says that instances take the request's tensors in clients' memory where they
	// lie. Else Brings says that Do has an input read itself if it must be, and CheckBytes
	// looks at BYTES inputs that were read since Validate.
	Places(req *infer.Request) bool
	Brings(t *infer.Tensor) bool
	CheckBytes(req *infer.Request) error
	// Decoupled says that one request may have any number of responses.
	Decoupled() bool
	// Batched says that the first dimension of every tensor is the batch.
	Batched() bool
	// Labels are an output's class labels, or nil.
	Labels(output string) []string
	// Present turns a response's tensors from the backend's view into the client's.
	Present(resp *infer.Response)
	// Fit is the shape in which an ensemble gives a tensor to an input; see
	// schedule.Pinned.
	Fit(input string, batched bool, shape []int64) []int64
	// Done records a request that has ended.
	Done(req *infer.Request, err error)
	Release()
}

// Models finds models; gateway/repository fits it.
type Models interface {
	// Acquire pins a version: it stays loaded until Release. NotFound, InvalidArg (a
	// version that is no number) or Unavailable (not ready).
	Acquire(ctx context.Context, name, version string) (Model, error)
	// Look says whether the version that Acquire would pin is decoupled, for less than it
	// takes to pin it. Errors are Acquire's.
	Look(name, version string) (decoupled bool, err error)
}

// Config is a Pipeline in values.
type Config struct {
	Timings Timings
	// ClassBytes bounds the classes of one response; 0: classification.DefaultMaxBytes.
	ClassBytes int64
}

// Deps are the collaborators of a Pipeline. Only Models is required.
type Deps struct {
	Models    Models
	Guard     Guard           // before everything; nil: everybody may do everything
	Admission Admission       // behind the guard; nil: no limits
	Tracer    *tracing.Tracer // decides which requests are traced; nil: none is
	Cache     *cache.Step     // before the queues of models whose answers are kept; nil: none
	Regions   infer.Regions   // reads and writes tensors in clients' memory; nil: there is none
	Responses *infer.Budget   // counts classes; nil: they are not counted
	// Ended sees the end of every call, refused ones too, on the goroutine that answers it,
	// which may be one that reads results for many calls: it must not block. What it is
	// given is valid until it returns. nil: nobody asks.
	Ended func(env *infer.Envelope, end *infer.End)
}

// Pipeline carries requests to their responses.
type Pipeline struct {
	cfg      Config
	deps     Deps
	patient  bool // Admission may wait
	stopping atomic.Bool
	flight   flight
	walks    sync.Pool // of *walk
}

// New makes a pipeline.
func New(c Config, d Deps) *Pipeline {
	if d.Models == nil {
		panic("pipeline: Deps.Models is nil")
	}
	if c.ClassBytes == 0 {
		c.ClassBytes = classification.DefaultMaxBytes
	}
	return &Pipeline{cfg: c, deps: d, patient: d.Admission != nil && d.Admission.Waits()}
}

// Stop makes Open refuse every further inference: the gateway drains.
func (p *Pipeline) Stop() { p.stopping.Store(true) }
