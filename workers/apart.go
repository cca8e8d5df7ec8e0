package workers

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/internal/region"
	"github.com/sluice-serve/sluice/workers/wire"
)

// apartSize is how many bytes of each request have to be copied at least, before it may pay
// to execute the requests of a batch one by one where their inputs lie.
const apartSize = 64 << 10

// noWindow: the backend sees the whole batch.
const noWindow = -1

// piece is one request's part of an input, where it lies.
type piece struct {
	data   []byte
	region *region.Region // nil: it lies in an arena
	off, n int64
}

// mayBeApart says of a model's instance whether the requests of a batch may be executed one
// by one: they have nothing to do with each other, and nobody waits for a device.
func mayBeApart(m *model, spec backend.InstanceSpec) bool {
	c := m.spec.Config
	return !spec.GPU && c.GetSequenceBatching() == nil && !c.GetModelTransactionPolicy().GetDecoupled() &&
		len(c.GetBatchInput()) == 0 && len(c.GetBatchOutput()) == 0
}

// chooseApart says whether the batch, of whose inputs so many bytes would have to be
// gathered, is executed request by request. x.pieces has the inputs then.
func (x *execution) chooseApart(gather int64) bool {
	n := len(x.requests)
	x.measured = x.inst.apart && n > 1 && x.batch.Rows > 0 && gather >= apartSize*int64(n) && x.cutPieces()
	return x.measured && x.inst.choice.next(n)
}

// cutPieces finds every request's part of every input; false: some must be copied anyhow.
func (x *execution) cutPieces() bool {
	x.pieces = x.pieces[:0]
	parts, k := x.parts, 0
	for i := range x.batch.Inputs {
		in := &x.batch.Inputs[i]
		if in.Layout != infer.ByRow || in.Datatype.Size() <= 0 || len(in.Shape) == 0 || in.Shape[0] != int64(x.batch.Rows) {
			return false
		}
		row, err := infer.ByteSize(in.Datatype, in.Shape[1:])
		if err != nil {
			return false
		}
		w := walk{x: x, in: in, first: k}
		for len(w.parts) < len(parts) && parts[len(w.parts)].input == i {
			w.parts = parts[:len(w.parts)+1]
		}
		parts = parts[len(w.parts):]
		for r := range x.requests {
			p, ok := w.next(row * int64(x.requests[r].wire.Rows))
			if !ok {
				return false
			}
			x.pieces = append(x.pieces, p)
		}
		k += len(in.Segments)
	}
	return true
}

// walk goes along an input's segments.
type walk struct {
	x     *execution
	in    *wire.Input
	first int    // number of the input's first segment
	parts []part // of the input, if one lies in a region; as many as segments
	at    int    // segments that were begun
	rest  piece  // of the last of them
}

// next is the piece of the next n bytes; false if it is none, or can't be read in place.
func (w *walk) next(n int64) (p piece, ok bool) {
	for w.rest.n == 0 && w.at < len(w.in.Segments) {
		if w.rest, ok = w.segment(w.at); !ok {
			return p, false
		}
		w.at++
	}
	if n > w.rest.n {
		return p, false
	}
	p = w.rest
	p.n = n
	w.rest.off, w.rest.n = w.rest.off+n, w.rest.n-n
	if p.data != nil {
		p.data, w.rest.data = p.data[:n:n], p.data[n:]
	}
	return p, isAligned(p.data, w.in.Datatype)
}

func (w *walk) segment(j int) (p piece, ok bool) {
	if len(w.parts) == 0 {
		s := w.in.Segments[j]
		data, err := w.x.inst.transport.view(w.x, w.first+j, s)
		return piece{data: data, n: s.Length}, err == nil
	}
	from := &w.parts[j]
	p = piece{data: from.data, region: from.region, off: from.off, n: from.n}
	switch {
	case from.data != nil || from.region == nil: // without either its request is lost
		return p, true
	case w.in.Datatype.IsFloat() || from.region.Frozen():
		p.data = from.region.InPlace(from.off, from.n)
		return p, p.data != nil
	}
	return p, false
}

// show makes request i all that the backend sees of the batch.
func (x *execution) show(i int) {
	x.window = i
	x.inputs, x.inPlace = x.inputs[:0], x.inPlace[:0]
	for k := range x.batch.Inputs {
		in, p := &x.batch.Inputs[k], &x.pieces[k*len(x.requests)+i]
		at := len(x.shapes)
		x.shapes = append(x.shapes, in.Shape...)
		shape := x.shapes[at:len(x.shapes):len(x.shapes)]
		shape[0] = int64(x.requests[i].wire.Rows)
		x.inputs = append(x.inputs, infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: shape, Data: p.data})
		if p.region != nil {
			x.inPlace = append(x.inPlace, part{input: k, request: i, region: p.region, off: p.off, n: p.n})
		}
	}
}

// executeApart executes the requests one by one. Their answers are what the batch's would
// be; the times of all are summed, as it is one execution. It counts the rows that were
// computed.
func (inst *instance) executeApart(x *execution, made backend.Instance) (rows int) {
	for i := range x.requests {
		r := &x.requests[i]
		if r.answered {
			continue
		}
		if r.Cancelled() {
			x.fail(i, errCancelled())
			continue
		}
		x.show(i)
		x.start, x.inputEnd, x.inferEnd = infer.Now(), 0, 0
		err := inst.call(x, made)
		switch {
		case err == nil:
		case r.answered:
			inst.log.Warn("a backend failed after it had answered a request", "error", err)
		default:
			x.fail(i, err)
		}
		if r.answered && !r.failed {
			rows += r.wire.Rows
		}
		x.spend(infer.Now())
	}
	x.window = noWindow
	return rows
}

// spend adds the times of one request.
func (x *execution) spend(end int64) {
	if x.inputEnd == 0 {
		x.inputEnd = x.start
	}
	if x.inferEnd == 0 {
		x.inferEnd = end
	}
	x.spent.Input += x.inputEnd - x.start
	x.spent.Infer += max(x.inferEnd-x.inputEnd, 0)
	x.spent.Output += end - x.inferEnd
}

// measure tells the instance's choice how long a batch took that could have been executed
// both ways. What was not computed, since nobody waited for it or it failed, counts for
// nothing: a client who cancels makes no kind look faster than it is.
func (x *execution) measure(rows int) {
	if x.measured && rows > 0 {
		x.inst.choice.took(len(x.requests), rows, x.apart, time.Duration(infer.Now()-x.began))
	}
}

// index is the batch's number of what is request i to the backend; -1: there is none.
func (x *execution) index(i int) int {
	switch {
	case x.window != noWindow && i == 0:
		return x.window
	case x.window != noWindow || i < 0 || i >= len(x.requests):
		return -1
	}
	return i
}

// only is the one request that the backend sees; -1: it sees several.
func (x *execution) only() int {
	if x.window == noWindow && len(x.requests) != 1 {
		return -1
	}
	return x.index(0)
}

func errCancelled() error {
	return infer.Refusef(infer.Cancelled, infer.ReasonCancelled, "request was cancelled")
}
