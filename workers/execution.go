package workers

import (
	"unsafe"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// alignment is what tensors handed to a backend are aligned to at least when they had
// to be gathered, and what Alloc promises.
const alignment = 64

// keptScratch is the most memory an instance keeps for gathering between batches.
const keptScratch = 64 << 20

// transport is where an instance's batches come from and where its results go. One
// instance has it; but for close and gone its methods are the instance goroutine's, and for
// an execution that was kept theirs who hold its lock.
type transport interface {
	// receive waits for a batch and decodes it into x.batch and x.flags. errStopped
	// when none will come any more.
	receive(x *execution) error
	// view is the bytes of the k-th segment of the batch, counted over all inputs.
	view(x *execution, k int, s wire.Segment) ([]byte, error)
	// alloc takes memory for outputs; x is asked whether waiting still makes sense.
	alloc(x *execution, n int64) (*block, error)
	// place notes output data as part of d; b is the block it lies in, nil for none.
	place(d *draft, b *block, data []byte) wire.Segment
	// send delivers d. It fails for a part (More) alone, and then nothing was sent;
	// with the end of a batch the transport does what it can.
	send(x *execution, d *draft) error
	// forget gives back blocks of x's that it took itself for a part which was sent.
	forget(x *execution, blocks []*block)
	// keep makes x's memory its own, as the transport receives another batch before x ends.
	keep(x *execution)
	// gone says that nobody waits for any result any more.
	gone() bool
	// end gives back the memory of the batch but for what was sent.
	end(x *execution)
	// close makes receive return errStopped after the batch that is in flight. Any
	// goroutine may call it, once.
	close()
}

// block is memory from Alloc. refs counts the executions and sent results that use
// it; its transport guards it.
type block struct {
	mem  []byte
	refs int
}

func (b *block) holds(data []byte) bool {
	p, base := uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(unsafe.Pointer(unsafe.SliceData(b.mem)))
	return p >= base && p-base <= uintptr(len(b.mem)) && uintptr(len(data)) <= uintptr(len(b.mem))-(p-base)
}

// draft is a result that is being put together, with the memory under its outputs.
type draft struct {
	result   wire.Result
	blocks   []*block // one entry for each output that has data
	tensors  [][]byte // the stream's: the data in the order of the outputs
	size     int64    // of tensors
	resident []uint32 // slots of resident outputs, until it was sent
}

func (d *draft) reset(id uint64) {
	clear(d.tensors)
	*d = draft{
		result:   wire.Result{ID: id, Outputs: d.result.Outputs[:0], Responses: d.result.Responses[:0]},
		blocks:   d.blocks[:0],
		tensors:  d.tensors[:0],
		resident: d.resident[:0],
	}
}

// execution is one batch on one instance; it fits backend.Batch. It is made once for
// an instance and reused, so that a batch costs no allocation; one that was kept is not.
type execution struct {
	inst  *instance
	batch wire.Batch
	flags []uint32 // cancel flags, by wire.Request.Cancel; read atomically

	inputs   []infer.Tensor
	requests []request
	faces    []backend.Request // the same as requests
	scratch  []byte
	cut      bool // requests have their inputs

	uses     []use  // regions of clients' memory
	parts    []part // of inputs in them that are gathered
	inPlace  []part // inputs that are read where they lie
	placed   bool   // a request has destinations for outputs
	resident bool   // or lets them stay in device memory
	device   deviceTensors

	roomParts []part

	blocks  []*block
	final   draft // what is sent when Execute has returned
	part    draft // what is sent at once
	open    int   // requests without final answer
	outputs []wire.Output
	shapes  []int64

	kept    *keptBatch   // the batch goes on when Execute returns; nil: it ends then
	encoded []byte       // a result's descriptor on its way to the lane
	source  *streamBatch // what came by the stream; nil: it came by the lane

	window   int     // the request that the backend sees; noWindow: all of them
	apart    bool    // requests are executed one by one
	measured bool    // they could be
	starved  bool    // memory was waited for in vain while they were
	passing  bool    // the backend was told that an input may be an output
	pieces   []piece // by input, then by request; valid if measured

	// start is when the batch began, or the request that the backend sees.
	start, inputEnd, inferEnd int64
	began                     int64              // the batch
	spent                     infer.ComputeTimes // of requests that were executed one by one
}

// prepare lays out the inputs and requests of x.batch. An error ends the batch.
func (x *execution) prepare() error {
	x.start, x.inputEnd, x.inferEnd = infer.Now(), 0, 0
	x.began = x.start
	x.final.reset(x.batch.ID)
	x.part.reset(x.batch.ID)
	x.blocks, x.outputs, x.shapes = x.blocks[:0], x.outputs[:0], x.shapes[:0]
	x.open, x.cut, x.passing = len(x.batch.Requests), false, false
	x.window, x.apart, x.measured, x.starved, x.spent = noWindow, false, false, false, infer.ComputeTimes{}
	if err := x.prepareRequests(); err != nil {
		return err
	}
	x.preparePlaces()
	if err := x.prepareInputs(); err != nil {
		return err
	}
	x.checkRegions()
	return nil
}

func (x *execution) prepareRequests() error {
	n := len(x.batch.Requests)
	if cap(x.requests) < n {
		x.requests = make([]request, n)
		x.faces = make([]backend.Request, n)
		for i := range x.requests {
			x.faces[i] = &x.requests[i]
		}
	}
	x.requests, x.faces = x.requests[:n], x.faces[:n]
	rows := 0
	for i := range x.batch.Requests {
		w := &x.batch.Requests[i]
		r := &x.requests[i]
		if x.batch.Rows == 0 {
			w.Rows = 0
		}
		*r = request{x: x, wire: w, index: i, first: rows, inputs: r.inputs[:0]}
		rows += w.Rows
	}
	if rows != x.batch.Rows || n == 0 || x.batch.Rows == 0 && n > 1 {
		return infer.Errorf(infer.Internal, "a batch of %d requests says %d rows, its requests have %d", n, x.batch.Rows, rows)
	}
	return nil
}

func (x *execution) prepareInputs() error {
	x.inputs = x.inputs[:0]
	var gather int64
	k := 0
	for i := range x.batch.Inputs {
		in := &x.batch.Inputs[i]
		if place, ok, err := x.deviceInput(i, k); ok || err != nil {
			if err != nil {
				return err
			}
			k += len(in.Segments)
			x.inputs = append(x.inputs, infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Place: place})
			continue
		}
		data, again, err := x.inputData(i, k)
		if err != nil {
			return err
		}
		if again > 0 {
			gather += roundUp(again)
		}
		k += len(in.Segments)
		x.inputs = append(x.inputs, infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape, Data: data})
	}
	if gather == 0 {
		return nil
	}
	if x.apart = x.chooseApart(gather); x.apart {
		return nil
	}
	return x.gather(gather)
}

// inputData is the view on an input, or how many bytes of it have to be gathered: it
// has several segments, or one that its datatype's alignment forbids to read.
func (x *execution) inputData(i, k int) (data []byte, gather int64, err error) {
	in := &x.batch.Inputs[i]
	if inRegion(in) {
		return x.placedInput(i, k)
	}
	var n int64
	for i, s := range in.Segments {
		data, err = x.inst.transport.view(x, k+i, s)
		if err != nil {
			return nil, 0, err
		}
		n += int64(len(data))
	}
	want, err := infer.ByteSize(in.Datatype, in.Shape)
	if err != nil {
		return nil, 0, infer.Errorf(infer.Internal, "input '%s': %w", in.Name, err)
	}
	if want != n && in.Datatype != infer.Bytes || in.Datatype == infer.Invalid {
		return nil, 0, infer.Errorf(infer.Internal, "input '%s' of %s %v has %d bytes, want %d", in.Name, in.Datatype, in.Shape, n, want)
	}
	if len(in.Segments) == 1 && isAligned(data, in.Datatype) {
		return data, 0, nil
	}
	return nil, n, nil
}

// gather copies what has no view into the scratch memory.
func (x *execution) gather(total int64) error {
	if int64(len(x.scratch)) < total {
		x.scratch = alignedBytes(total)
	}
	rest, parts := x.scratch, x.parts
	k := 0
	for i := range x.batch.Inputs {
		in := &x.batch.Inputs[i]
		if x.inputs[i].Data == nil && x.inputs[i].Place.IsZero() && len(in.Segments) > 0 {
			n, taken := x.gatherParts(rest, parts, i)
			parts = parts[taken:]
			for j, s := range in.Segments {
				if taken > 0 {
					break
				}
				data, err := x.inst.transport.view(x, k+j, s)
				if err != nil {
					return err
				}
				n += copy(rest[n:], data)
			}
			x.inputs[i].Data = rest[:n:n]
			rest = rest[min(roundUp(int64(n)), int64(len(rest))):]
		}
		k += len(in.Segments)
	}
	return nil
}

func isAligned(b []byte, d infer.Datatype) bool {
	return len(b) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(max(d.Size(), 1)-1) == 0
}

func roundUp(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }

func alignedBytes(n int64) []byte {
	raw := make([]byte, n+alignment)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (alignment - 1)
	return raw[skip : int64(skip)+n]
}

// finish completes the final result after Execute returned err.
func (x *execution) finish(err error) {
	end := infer.Now()
	switch {
	case x.open == 0 && err != nil:
		x.inst.log.Warn("a backend failed after it had answered every request", "error", err)
	case x.open > 0 && err == nil:
		x.inst.worker.faults.Add(1)
		x.inst.log.Error("a backend left requests without answer", "requests", x.open)
		err = infer.Errorf(infer.Internal, "the model gave no answer to the request")
	}
	if x.open == len(x.requests) {
		x.dropResident(&x.final, 0)
		x.final.reset(x.batch.ID)
		r := &x.final.result
		r.Code, r.Reason, r.Err = infer.CodeOf(err), infer.ReasonOf(err), textOf(err)
	} else if x.open > 0 {
		for i := range x.requests {
			if !x.requests[i].answered {
				x.fail(i, err)
			}
		}
	}
	if x.apart {
		x.final.result.Compute = x.spent
		return
	}
	if x.inputEnd == 0 {
		x.inputEnd = x.start
	}
	if x.inferEnd == 0 {
		x.inferEnd = end
	}
	x.final.result.Compute = infer.ComputeTimes{
		Input: x.inputEnd - x.start, Infer: max(x.inferEnd-x.inputEnd, 0), Output: end - x.inferEnd}
}

// release drops what the batch pointed to and gives back its memory.
func (x *execution) release() {
	x.inst.transport.end(x)
	x.releaseRegions()
	x.dropResident(&x.final, 0)
	x.releaseDevice()
	if x.kept != nil {
		return // it is not used again, and who kept it may look at it
	}
	if len(x.scratch) > keptScratch {
		x.scratch = nil
	}
	clear(x.inputs)
	clear(x.pieces)
	clear(x.blocks)
	x.blocks = x.blocks[:0]
}

// allCancelled says that nobody waits for any answer of the batch.
func (x *execution) allCancelled() bool {
	for i := range x.requests {
		if !x.requests[i].Cancelled() {
			return false
		}
	}
	return true
}

// Rows fits backend.Batch.
func (x *execution) Rows() int {
	if x.window != noWindow {
		return x.requests[x.window].wire.Rows
	}
	return x.batch.Rows
}

// Inputs fits backend.Batch.
func (x *execution) Inputs() []infer.Tensor { return x.inputs }

// Requests fits backend.Batch.
func (x *execution) Requests() []backend.Request {
	if x.window != noWindow {
		return x.faces[x.window : x.window+1]
	}
	return x.faces
}

// InputDone fits backend.Batch.
func (x *execution) InputDone() {
	if x.kept == nil {
		x.inputEnd = infer.Now()
	}
}

// InferDone fits backend.Batch.
func (x *execution) InferDone() {
	if x.kept != nil {
		return
	}
	x.inferEnd = infer.Now()
	if x.inputEnd == 0 {
		x.inputEnd = x.start
	}
}

func (x *execution) isLost(i int) bool { return i >= 0 && x.requests[i].lost }
