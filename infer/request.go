package infer

import (
	"sync/atomic"
	"time"
)

// Tensor is one named tensor. Data is row-major little-endian; for Bytes each element
// is a 4-byte little-endian length and that many bytes; for Bool one byte, 0 or 1.
// Data is a view and valid while the request's or response's memory is.
type Tensor struct {
	Name     string
	Datatype Datatype
	Shape    []int64
	Data     []byte
	// Place, where it is not zero, is where the tensor lies in a client's memory, or where it is
	// resident, and Data is nil.
	Place Place
}

// Bytes counts the tensor's bytes, wherever they lie.
func (t *Tensor) Bytes() int64 {
	if !t.Place.IsZero() {
		return t.Place.Size
	}
	return int64(len(t.Data))
}

// Kind is the type of a Value.
type Kind uint8

// The kinds of a Value. The zero Value is the false bool.
const (
	KindBool Kind = iota
	KindInt64
	KindUint64
	KindDouble
	KindString
)

// Value is one parameter value.
// Source: message InferParameter, proto/inference/grpc_service.proto.
type Value struct {
	Kind   Kind
	Bool   bool
	Int    int64 // KindInt64; KindUint64 holds its bits here
	Double float64
	Str    string
}

// Param is one named parameter.
type Param struct {
	Name  string
	Value Value
}

// Params are parameters in the order they arrived; names are unique.
type Params []Param

// Get finds a parameter by its name.
func (p Params) Get(name string) (Value, bool) {
	for i := range p {
		if p[i].Name == name {
			return p[i].Value, true
		}
	}
	return Value{}, false
}

// RequestedOutput asks for one output.
type RequestedOutput struct {
	Name string
	// Classification k > 0 asks for the k largest values with their labels in place
	// of the tensor (classification extension).
	Classification int64
	Params         Params // others, for backends
	// Place, where it is not zero, is where the worker writes the output in place of
	// answering it; an output that is larger is an error of the request.
	Place Place
	// Resident lets the output stay in the device memory that it was made in: the answer then has
	// its Place, and no Data. Steps of an ensemble ask so for what goes to another one on that device.
	Resident bool
}

// Request is one inference request, decoded. Fields up to Memory are set by the front
// end; Rows by validation. After validation it is read-only but for Times, and
// for what ReleaseInputs takes from it.
type Request struct {
	ID      string
	Model   string
	Version string // as the client wrote it; "" is the version policy's newest
	Inputs  []Tensor
	Outputs []RequestedOutput // empty: all outputs of the model
	Params  Params            // custom parameters, reserved ones taken out

	Priority      uint64        // 0: the model's default
	Timeout       time.Duration // of the `timeout` parameter; 0: none
	Correlation   Correlation
	SequenceStart bool
	SequenceEnd   bool
	Streaming     bool // the caller takes any number of responses
	TakesErrors   bool // with Streaming: he takes responses that are errors (Response.Err), behind which others come
	Depth         int  // models that run this request as a step of theirs, one inside the other; 0: a client's own
	// Within are the executions that wait for the request, where a model has called for it;
	// nil: none do.
	Within *Ancestor
	// Tenant is the scope within which answers, and IDs of sequences, may be shared between
	// callers; "": that of everybody without one.
	Tenant string
	// Caller is the name of who wants it, also of a step's request; "": nobody's in
	// particular. Weight is his in shares of a full queue; 0: 1.
	Caller string
	Weight int

	// Envelope is the call that the request came in; nil for what is no client's own, as
	// a step of an ensemble.
	Envelope *Envelope
	// Origin is the client's call that the request is made for: Envelope, or that of the
	// ensemble's request where it is a step; nil where there is none. It is valid until the
	// call is answered.
	Origin *Envelope

	// Burst, where it is not nil, is what the request was read in: a scheduler that holds a
	// request back until its end adds itself.
	Burst Gatherer

	// Memory is the counted memory under Inputs, or nil when they are plain
	// garbage-collected bytes. The maker of the request releases its reference after
	// the end has come; whoever reads later holds a reference of its own. It is nil from
	// ReleaseInputs on.
	Memory *Buffer

	// Form, where it is not nil, is that of all requests whose front end read them from the
	// same bytes but for the id and the data. They have the same inputs but for what stands
	// in Data, the same requested outputs and the same priority when validation sees them.
	Form *Form

	Rows  int   // batch dimension; 1 for models without one
	Times Times // one record of timestamps for statistics, metrics and spans

	Served    string // decimal version that was pinned for it; "" where none was
	Decoupled bool   // its model may answer it any number of times; set once the model is pinned
	Timings   bool   // the caller wants the times among the response's parameters
	Released  bool   // ReleaseInputs was called: the inputs have no data any more

	// Trace is set when the request is sampled: by pipeline.Start, or before it by who
	// executes a step for another request (Trace.Child).
	Trace *Trace
	// TraceSend says that the front end marks when it sends the answer and calls
	// Trace.End itself; it is set before Start.
	TraceSend bool
}

// Ancestor is an execution in which a model has called for a request, or for one that the
// request is a step of. It is read-only.
type Ancestor struct {
	Instance Executor
	Batch    uint64
	Within   *Ancestor // in which it was called for itself; nil: nowhere
}

// Stuck says that a request which needs one of these instances would wait for an execution
// that waits for the request: each of them is occupied by an ancestor.
func (a *Ancestor) Stuck(instances []Executor) bool {
	if a == nil || len(instances) == 0 {
		return false
	}
	for _, e := range instances {
		if !a.occupies(e) {
			return false
		}
	}
	return true
}

func (a *Ancestor) occupies(e Executor) bool {
	for ; a != nil; a = a.Within {
		if a.Instance == e && e.Occupied(a.Batch) {
			return true
		}
	}
	return false
}

// Form is what many requests have in common: a place to remember what was found out of
// one and holds for all. The zero value remembers nothing. Safe for concurrent use.
type Form struct{ valid atomic.Pointer[validForm] }

type validForm struct {
	by   any
	rows int
}

// Valid is how many rows a request of this form has, as by said when it last validated
// one. A nil form, and one that another has validated since, is false.
func (f *Form) Valid(by any) (rows int, ok bool) {
	if f == nil {
		return 0, false
	}
	v := f.valid.Load()
	if v == nil || v.by != by {
		return 0, false
	}
	return v.rows, true
}

// SetValid remembers that requests of this form are valid in by's eyes, whatever their
// data. by must be comparable, and lives as long as the form or until another's word.
func (f *Form) SetValid(by any, rows int) {
	if f != nil {
		f.valid.Store(&validForm{by, rows})
	}
}

// ReleaseInputs gives the memory under Inputs back before the end, with the maker's reference:
// the data of the inputs is gone then. It is called where the request's answers are handed over,
// so that its maker waits for the end meanwhile and no other answer is on its way.
func (r *Request) ReleaseInputs() {
	m := r.Memory
	if m == nil {
		return
	}
	r.Memory, r.Released = nil, true
	for i := range r.Inputs {
		r.Inputs[i].Data = nil
	}
	m.Release()
}

// Placed says that tensors of the request lie in clients' memory, or are to go there.
func (r *Request) Placed() bool {
	for i := range r.Inputs {
		if !r.Inputs[i].Place.IsZero() {
			return true
		}
	}
	for i := range r.Outputs {
		if !r.Outputs[i].Place.IsZero() {
			return true
		}
	}
	return false
}

// Prefix is the start of the original's core error texts: "[request id: r1] ".
func (r *Request) Prefix() string {
	if r.ID == "" {
		return "[request id: <id_unknown>] "
	}
	return "[request id: " + r.ID + "] "
}

// Times are nanoseconds of the monotonic clock (Now), 0 where a step did not happen.
// The four of the compute phase are those of the whole batch.
type Times struct {
	RequestStart       int64
	QueueStart         int64
	ComputeStart       int64
	ComputeInputEnd    int64
	ComputeOutputStart int64
	ComputeEnd         int64
	RequestEnd         int64
	CacheLookup        int64 // duration of the lookup; 0 without a cache
	CacheHit           bool
	Cache              CacheStatus // how the response cache took part in the answer
	BatchRows          int         // rows of the batch that it went in
	Abandoned          int64       // duration: how long its batch had run when its caller left, its part by rows
}

var epoch = time.Now()

// Now is the monotonic clock in nanoseconds since the process started, plus one so
// that it is never 0.
func Now() int64 { return int64(time.Since(epoch)) + 1 }

// Response is one answer to a request.
type Response struct {
	ID      string
	Model   string
	Version string // decimal
	Outputs []Tensor
	Params  Params
	Final   bool // no further response follows
	// Err is set where the answer is an error and others follow it, for a request that TakesErrors; nothing but ID, Model,
	// Version and Memory is set beside it.
	Err error

	Cache CacheStatus   // how the response cache took part
	Age   time.Duration // of an answer out of the cache

	// Memory is the counted memory under Outputs, or nil. The receiver of the
	// response owns one reference and releases it when the outputs are encoded. With the
	// last one the response itself may become another's, its shapes too.
	Memory *Buffer
}

// SendFunc takes one response, on the goroutine that called Infer. The response and
// its memory are the callee's. An error stops the request.
type SendFunc func(*Response) error
