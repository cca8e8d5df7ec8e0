package infer

// Batch is what one execution of an instance carries: one or more requests, in order.
// A scheduler makes it and keeps everything in it unchanged until the final Result
// was delivered.
type Batch struct {
	ID       uint64 // unique in this gateway
	Requests []*Request
	Rows     int // sum of the requests' rows; 0 for a model without batch dimension
	Inputs   []BatchInput
	Attempt  int // 0 at first; counts workers lost under it
	// Also are outputs that are needed besides those that the requests ask for.
	Also []string

	// Deliver takes the batch's results, one call at a time, never while Execute is
	// on the stack. The last has More false; after it the instance is free, if a result
	// before it has not freed it already. It must return soon: no encoding, no I/O.
	Deliver func(*Result)
	// Woke is set by Deliver where it has made a goroutine ready; see Gatherer.Woke.
	Woke bool

	// Transport is for the Executor alone.
	Transport any
}

// BatchInput is one input of the whole batch.
type BatchInput struct {
	Name     string
	Datatype Datatype
	Shape    []int64 // of the whole batch: rows first where the model has a batch dimension
	Layout   Layout
	// Extents are the shapes of the requests' own tensors, in order, where Layout is
	// Ragged: then Shape is the one number of all their elements. A request without the
	// input has the extent [0].
	Extents [][]int64
	// Segments are the rows in order of the requests. One segment is the rule: the
	// batch stands contiguous in its slot. More are gathered by the worker.
	Segments [][]byte
	// Places are those of the segments, by index, where some lie in clients' memory; nil
	// where none does. A segment whose place is not zero is nil.
	Places []Place
}

// Layout says how the requests' own tensors lie in an input of a batch.
type Layout uint8

// The layouts.
const (
	// ByRow: one request's rows after the other's, each with the rest of Shape. Without
	// batch dimension the one request's tensor is the input.
	ByRow Layout = iota
	// Ragged: the elements of one request after those of the other, in one dimension;
	// each request has a shape of its own.
	Ragged
	// Shared: one tensor that all requests have in common.
	Shared
	// Computed: of the batch as a whole; no request has it.
	Computed
)

// Result is what came back for a batch: its end, or with More set a part of it.
type Result struct {
	Err error // the whole batch failed; nothing else is set but Compute

	// Outputs of the whole batch, rows first in the order of the requests, to be cut
	// by their rows (Split), or by elements where the config's batch_output says so
	// (SplitElements). Set when Responses is nil.
	Outputs []Tensor
	// Responses to single requests in place of Outputs: backends that answer each
	// request, decoupled models, errors of one request.
	Responses []RequestResult

	// Memory under the tensors; the receiver owns one reference.
	Memory  *Buffer
	Compute ComputeTimes
	More    bool // further results of this batch follow
	// Free is set with More, at most once for a batch: its instance takes the next batch
	// from now on. Requests without final answer stay open until the last result.
	Free bool
	// InputsRead is set with More, at most once for a batch and not before Free: nobody reads the
	// batch's inputs any more.
	InputsRead bool
}

// RequestResult is one response to the request at Index of the batch. Either Response
// or Err is set. Responses with Final unset are followed by others. Its Response's
// Memory is nil: the Result's Memory is under it.
type RequestResult struct {
	Index    int
	Response *Response
	Err      error
	// Repeat says that the request is not answered but to be executed again: iterative
	// sequences. Then Response is a part of its answer, or nil.
	Repeat bool
}

// ComputeTimes are durations in nanoseconds, measured by the worker, and 0 where it
// did not say.
type ComputeTimes struct {
	Input, Infer, Output int64
}

// Executor executes batches on one instance, one at a time but for those that were freed
// (Result.Free). Schedulers call it; workers/client fits it.
type Executor interface {
	// Execute starts b. It does not block and does not fail: trouble comes as a
	// Result, later and from another goroutine.
	Execute(b *Batch)
	// Cancel says that nobody waits for the answer of b.Requests[i] any more. The
	// batch still ends with its final Result. It comes after Execute returned, from any
	// goroutine, maybe twice, and maybe when the batch has ended: then it does nothing.
	Cancel(b *Batch, i int)
	// Occupied says that the instance can take no other batch before the one of that ID
	// ends or frees it. It does not block.
	Occupied(batch uint64) bool
	// Place names the instance and the worker that has it, for spans; "" where that is not
	// known.
	Place() (instance, worker string)
}

// Split cuts the outputs of a batch of n rows to the rows [first, first+rows) of one
// request. Outputs whose first dimension is not n are an error of the model: Internal.
// BYTES outputs are walked. out is appended to and returned; shapes are fresh slices.
func Split(out []Tensor, outputs []Tensor, n, first, rows int) ([]Tensor, error) {
	for i := range outputs {
		o := &outputs[i]
		if len(o.Shape) == 0 || o.Shape[0] != int64(n) {
			return nil, Errorf(Internal, "output '%s' has shape %v, which does not begin with the batch's %d rows", o.Name, o.Shape, n)
		}
		if o.Place.IsResident() {
			t, err := splitResident(o, n, first, rows)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
			continue
		}
		if !o.Place.IsZero() { // where its request wants it, so the batch is that request's
			if rows != n {
				return nil, Errorf(Internal, "output '%s' of %d rows lies in the memory of one of the batch's clients", o.Name, n)
			}
			out = append(out, *o)
			continue
		}
		data, err := splitRows(o, n, first, rows)
		if err != nil {
			return nil, err
		}
		shape := make([]int64, len(o.Shape))
		copy(shape, o.Shape)
		shape[0] = int64(rows)
		out = append(out, Tensor{Name: o.Name, Datatype: o.Datatype, Shape: shape, Data: data})
	}
	return out, nil
}

// splitResident cuts rows of a resident output, which is none of BYTES.
func splitResident(o *Tensor, n, first, rows int) (Tensor, error) {
	if size, err := ByteSize(o.Datatype, o.Shape); err != nil || o.Datatype == Bytes || size != o.Place.Size {
		return Tensor{}, Errorf(Internal, "output '%s' of %s %v has %d bytes of device memory", o.Name, o.Datatype,
			o.Shape, o.Place.Size)
	}
	row := o.Place.Size / int64(n)
	t := Tensor{Name: o.Name, Datatype: o.Datatype, Shape: append([]int64(nil), o.Shape...),
		Place: Place{Region: o.Place.Region, Offset: o.Place.Offset + int64(first)*row, Size: int64(rows) * row}}
	t.Shape[0] = int64(rows)
	return t, nil
}

func splitRows(o *Tensor, n, first, rows int) ([]byte, error) {
	if o.Datatype != Bytes {
		size, err := ByteSize(o.Datatype, o.Shape)
		if err != nil {
			return nil, Errorf(Internal, "output '%s': %w", o.Name, err)
		}
		if size != int64(len(o.Data)) {
			return nil, Errorf(Internal, "output '%s' of shape %v has %d bytes, want %d", o.Name, o.Shape, len(o.Data), size)
		}
		row := len(o.Data) / n
		return o.Data[first*row : (first+rows)*row : (first+rows)*row], nil
	}
	all, err := Elements(o.Shape)
	if err != nil {
		return nil, Errorf(Internal, "output '%s': %w", o.Name, err)
	}
	per := all / int64(n)
	start, err := skipElements(o, 0, int64(first)*per)
	if err != nil {
		return nil, err
	}
	end, err := skipElements(o, start, int64(rows)*per)
	if err != nil {
		return nil, err
	}
	return o.Data[start:end:end], nil
}

func skipElements(o *Tensor, at int, n int64) (int, error) {
	for ; n > 0; n-- {
		rest := o.Data[at:]
		if len(rest) < 4 {
			return 0, Errorf(Internal, "output '%s' of shape %v ends early", o.Name, o.Shape)
		}
		l := int(uint32(rest[0]) | uint32(rest[1])<<8 | uint32(rest[2])<<16 | uint32(rest[3])<<24)
		if l > len(rest)-4 {
			return 0, Errorf(Internal, "output '%s' of shape %v ends early", o.Name, o.Shape)
		}
		at += 4 + l
	}
	return at, nil
}

// SplitElements cuts the elements [first, first+n) of an output that holds the
// requests' results one after the other, and gives them a shape of n elements, which
// the result keeps. An output that has fewer is an error of the model: Internal. BYTES
// outputs are walked.
func SplitElements(o *Tensor, first, n int64, shape []int64) (Tensor, error) {
	t := Tensor{Name: o.Name, Datatype: o.Datatype, Shape: shape}
	size := o.Datatype.Size()
	if size == 0 {
		start, err := skipElements(o, 0, first)
		if err != nil {
			return t, err
		}
		end, err := skipElements(o, start, n)
		t.Data = o.Data[start:max(end, start):max(end, start)]
		return t, err
	}
	if have := int64(len(o.Data)) / size; first < 0 || n < 0 || first > have || n > have-first {
		return t, Errorf(Internal, "output '%s' of shape %v has %d elements, the requests' shapes ask for %d", o.Name, o.Shape, have, first+n)
	}
	t.Data = o.Data[first*size : (first+n)*size : (first+n)*size]
	return t, nil
}
