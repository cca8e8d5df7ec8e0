package infer

import (
	"sync"
	"sync/atomic"
)

// TraceLevel says what a Trace takes down, or-ed together; 0: nothing.
// Source: trace_level of the trace extension.
type TraceLevel uint8

// The trace levels.
const (
	TraceTimestamps TraceLevel = 1 << iota
	TraceTensors
)

// The names of tensors in a trace.
// Source: TRITONSERVER_InferenceTraceActivityString of the original.
const (
	TraceQueueInput    = "TENSOR_QUEUE_INPUT"
	TraceBackendInput  = "TENSOR_BACKEND_INPUT"
	TraceBackendOutput = "TENSOR_BACKEND_OUTPUT"
)

// TraceMark is a named moment, in nanoseconds of Now.
type TraceMark struct {
	Name string
	At   int64
}

// TraceTensor is a tensor as it was at one place (TraceQueueInput, TraceBackendOutput;
// a backend's inputs are those that were queued). Its Data is a copy; nil where the
// trace was too large for it.
type TraceTensor struct {
	Activity string
	Tensor
}

// Trace is what is taken down of one sampled request. A request that is not sampled
// has none: all methods do nothing on nil. A Trace belongs to the goroutine that
// answers its request until End; its children, steps of an ensemble, belong to theirs.
type Trace struct {
	ID, Parent uint64 // Parent 0: the client's own request
	Level      TraceLevel
	Model      string
	Version    string // decimal; "" where the request did not get that far
	RequestID  string
	Start      int64 // REQUEST_START; 0: it never reached its model
	Queued     int64 // when it was valid and handed on, to the cache or to the queue
	Times      Times // as they were when the request had ended
	Marks      []TraceMark
	Tensors    []TraceTensor

	// What spans tell besides.
	Span    SpanID        // of the request at its model
	Err     error         // why it failed; nil: it did not
	Batches []*TraceBatch // executions that it was in, in order

	family *TraceFamily

	// Memory for what most traces need, in one allocation.
	roomMarks   [6]TraceMark
	roomBatches [1]*TraceBatch
}

// TraceFamily is a sampled request with all of its children, which are kept together.
// Its maker sets the exported fields.
type TraceFamily struct {
	Level TraceLevel
	IDs   *atomic.Uint64     // numbers of traces
	Sink  func(*TraceFamily) // takes the family once all of it has ended; it must not block
	Owner any                // the Sink's
	// Room is how many bytes of tensors this family may still copy, Budget how many all
	// families may that are not written yet; Taken is what this one took of it.
	Room   int64
	Budget *atomic.Int64
	Taken  int64

	Traces []*Trace // the client's request first; the Sink's to read
	// Call is the call that the request came in, where spans are made of the family: it
	// is open until the call has ended too (Close). nil: of the traces alone.
	Call *TraceCall

	mu   sync.Mutex
	open int // mu; traces, batches and the call that have not ended

	first     Trace // the client's request
	roomTrace [1]*Trace
}

// maxMarks bounds the marks of one trace: a decoupled model may answer without end.
const maxMarks = 1024

// Begin makes the trace of the client's own request.
func (f *TraceFamily) Begin(model, requestID string) *Trace { return f.add(0, model, requestID) }

func (f *TraceFamily) add(parent uint64, model, requestID string) *Trace {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := &f.first
	if f.Traces == nil {
		f.Traces = f.roomTrace[:0]
	} else {
		t = &Trace{}
	}
	t.ID, t.Parent, t.Level, t.Model, t.RequestID, t.family = f.IDs.Add(1), parent, f.Level, model, requestID, f
	t.Marks = t.roomMarks[:0]
	if f.Call != nil {
		t.Span, t.Batches = NewSpanID(), t.roomBatches[:0]
	}
	f.Traces = append(f.Traces, t)
	f.open++
	return t
}

// Child makes the trace of a request that is executed for t's, as a step of an
// ensemble is: the step's Request gets it as its Trace before pipeline.Step, which
// ends it. t must not have ended. Safe for concurrent use.
func (t *Trace) Child(model, requestID string) *Trace {
	if t == nil {
		return nil
	}
	return t.family.add(t.ID, model, requestID)
}

// Mark takes down a moment.
func (t *Trace) Mark(name string, at int64) {
	if t != nil && t.Level&TraceTimestamps != 0 && len(t.Marks) < maxMarks {
		t.Marks = append(t.Marks, TraceMark{name, at})
	}
}

// Tensor takes a copy of what stood at a place, if the level asks for it.
func (t *Trace) Tensor(activity string, tensors []Tensor) {
	if t == nil || t.Level&TraceTensors == 0 {
		return
	}
	for _, in := range tensors {
		c := TraceTensor{activity, Tensor{Name: in.Name, Datatype: in.Datatype, Shape: append([]int64(nil), in.Shape...)}}
		if t.family.room(int64(len(in.Data))) {
			c.Data = append([]byte{}, in.Data...)
		}
		t.Tensors = append(t.Tensors, c)
	}
}

func (f *TraceFamily) room(n int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > f.Room {
		return false
	}
	if f.Budget.Add(-n) < 0 {
		f.Budget.Add(n)
		return false
	}
	f.Room -= n
	f.Taken += n
	return true
}

// End says that nothing more comes. The last End of a family hands it to its Sink.
// It must be called exactly once.
func (t *Trace) End() {
	if t == nil {
		return
	}
	t.family.done()
}

// Fail is End of a request that never got to its model.
func (t *Trace) Fail(err error) {
	if t != nil {
		t.Err = err
		t.End()
	}
}

// Open makes the family one of spans: it is complete when call has ended too. It comes
// before everything else.
func (f *TraceFamily) Open(call *TraceCall) {
	f.Call = call
	f.open++
}

// Close says that the family's call has ended, once.
func (f *TraceFamily) Close() { f.done() }

// done ends one part of the family.
func (f *TraceFamily) done() {
	f.mu.Lock()
	f.open--
	last := f.open == 0
	f.mu.Unlock()
	if last {
		f.Sink(f)
	}
}
