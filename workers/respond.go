package workers

import (
	"fmt"
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// Alloc fits backend.Batch.
func (x *execution) Alloc(n int64) ([]byte, error) {
	if x.kept != nil {
		return nil, x.misused(throughBatch)
	}
	return x.alloc(n)
}

func (x *execution) alloc(n int64) ([]byte, error) {
	if n < 0 {
		return nil, infer.Errorf(infer.Internal, "the model asked for %d bytes of memory", n)
	}
	b, err := x.inst.transport.alloc(x, n)
	if err != nil {
		return nil, err
	}
	x.blocks = append(x.blocks, b)
	return b.mem[:n:n], nil
}

// Outputs fits backend.Batch.
func (x *execution) Outputs(outputs []infer.Tensor) error {
	if x.kept != nil {
		return x.misused(throughBatch)
	}
	if x.open == 0 {
		return x.misused("answered a batch that had all its answers")
	}
	if len(x.inst.scattered) > 0 {
		var err error
		if outputs, err = x.onHost(outputs); err != nil {
			return err
		}
	}
	if rows := x.Rows(); rows > 0 {
		for i := range outputs {
			if _, ok := x.inst.scattered[outputs[i].Name]; ok {
				continue
			}
			if s := outputs[i].Shape; len(s) == 0 || s[0] != int64(rows) {
				return infer.Errorf(infer.Internal, "output '%s' has shape %v, which does not begin with the batch's %d rows",
					outputs[i].Name, s, rows)
			}
		}
	}
	if x.window != noWindow {
		return x.Respond(0, outputs, nil, true)
	}
	if x.checkRegions(); x.open == 0 {
		return nil
	}
	request := noRequest
	if x.placed && len(x.requests) == 1 && len(x.inst.scattered) == 0 {
		request = 0
	} else if x.placed || x.open < len(x.requests) {
		return x.split(outputs)
	}
	out, err := x.put(&x.final, outputs, request)
	if request != noRequest {
		x.checkRegions() // what was written may be gone already
	}
	if x.open == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	x.final.result.Outputs = append(x.final.result.Outputs, out...)
	for i := range x.requests {
		x.requests[i].answered = true
	}
	x.open = 0
	return nil
}

// split answers the open requests of a batch some of which have their answer.
func (x *execution) split(outputs []infer.Tensor) error {
	for i := range x.requests {
		r := &x.requests[i]
		if r.answered {
			continue
		}
		part, err := outputs, error(nil)
		if x.batch.Rows > 0 {
			part, err = x.splitOne(outputs, i)
		}
		if err == nil {
			err = x.respond(i, part, nil, true)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Respond fits backend.Batch.
func (x *execution) Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	if x.kept != nil {
		return x.misused(throughBatch)
	}
	return x.respond(x.index(i), outputs, params, final)
}

func (x *execution) respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error {
	if x.isLost(i) {
		return nil
	}
	if i < 0 || x.requests[i].answered {
		return x.misused(fmt.Sprintf("answered request %d, which had its final answer", i))
	}
	d := &x.final
	if x.leaves(final) {
		d = &x.part
		d.reset(x.batch.ID)
		d.result.More = true
		defer x.parted(len(x.blocks), len(x.outputs), len(x.shapes))
	}
	resident := len(d.resident)
	out, err := x.put(d, outputs, i)
	if x.checkRegionsOf(i); x.isLost(i) {
		x.dropResident(d, resident)
		return nil
	}
	if err != nil {
		return err
	}
	d.result.Responses = append(d.result.Responses, wire.Response{Index: i, Final: final, Params: slices.Clone(params), Outputs: out})
	if d == &x.part {
		if x.kept != nil {
			d.result.Compute = x.kept.compute(i)
		}
		if err := x.inst.transport.send(x, d); err != nil {
			x.dropResident(d, 0)
			return err
		}
	}
	if final {
		x.requests[i].answered = true
		x.open--
	}
	return nil
}

// leaves says that an answer leaves at once: another one of its request may follow, or others of
// a batch that was kept.
func (x *execution) leaves(final bool) bool {
	if x.kept != nil {
		return !final || x.open > 1
	}
	return !final || x.inst.decoupled
}

// parted forgets what a part needed once it was sent, or was refused: an execution may
// send any number of them.
func (x *execution) parted(blocks, outputs, shapes int) {
	x.inst.transport.forget(x, x.blocks[blocks:])
	clear(x.blocks[blocks:])
	x.blocks, x.outputs, x.shapes = x.blocks[:blocks], x.outputs[:outputs], x.shapes[:shapes]
}

// Repeat fits backend.Batch.
func (x *execution) Repeat(i int, outputs []infer.Tensor) error {
	if x.kept != nil {
		return x.misused(throughBatch)
	}
	if i = x.index(i); x.isLost(i) {
		return nil
	}
	if i < 0 || x.requests[i].answered {
		return x.misused(fmt.Sprintf("asked to repeat request %d, which had its final answer", i))
	}
	if !x.inst.iterative {
		return x.misused("asked to repeat a request without iterative_sequence")
	}
	out, err := x.put(&x.final, outputs, noRequest)
	if err != nil {
		return err
	}
	x.final.result.Responses = append(x.final.result.Responses, wire.Response{Index: i, Repeat: true, Outputs: out})
	x.requests[i].answered = true
	x.open--
	return nil
}

// Fail fits backend.Batch.
func (x *execution) Fail(i int, err error) error {
	if x.kept != nil {
		return x.misused(throughBatch)
	}
	return x.failOne(x.index(i), err)
}

func (x *execution) failOne(i int, err error) error {
	if x.isLost(i) {
		return nil
	}
	if i < 0 || x.requests[i].answered || err == nil {
		return x.misused(fmt.Sprintf("failed request %d, which had its final answer, with %v", i, err))
	}
	x.fail(i, err)
	return nil
}

// RespondError fits backend.Batch.
func (x *execution) RespondError(i int, err error) (open bool, fault error) {
	if x.kept != nil {
		return false, x.misused(throughBatch)
	}
	return x.respondError(x.index(i), err)
}

func (x *execution) respondError(i int, err error) (open bool, fault error) {
	if x.isLost(i) {
		return false, nil
	}
	if !x.inst.decoupled || !x.inst.connection.goesOn.Load() || infer.ReasonOf(err) == infer.ReasonWorkerLost {
		return false, x.failOne(i, err)
	}
	if i < 0 || x.requests[i].answered || err == nil {
		return false, x.misused(fmt.Sprintf("answered request %d, which had its final answer, with %v", i, err))
	}
	d := &x.part
	d.reset(x.batch.ID)
	d.result.More = true
	d.result.Responses = append(d.result.Responses, wire.Response{Index: i, GoesOn: true, Code: infer.CodeOf(err),
		Reason: infer.ReasonOf(err), Err: textOf(err)})
	if err := x.inst.transport.send(x, d); err != nil {
		return true, err
	}
	return true, nil
}

func (x *execution) fail(i int, err error) {
	if infer.ReasonOf(err) == infer.ReasonWorkerLost {
		x.inst.worker.losses.note()
	}
	x.requests[i].answered, x.requests[i].failed = true, true
	x.open--
	x.final.result.Responses = append(x.final.result.Responses, wire.Response{
		Index: i, Final: true, Code: infer.CodeOf(err), Reason: infer.ReasonOf(err), Err: textOf(err)})
}

// throughBatch is what a backend has done that uses a Batch after it was kept.
const throughBatch = "used a batch that it kept, in place of what Keep returned"

func (x *execution) misused(what string) error {
	x.inst.worker.faults.Add(1)
	x.inst.log.Error("a backend broke the rules of a batch", "fault", what)
	return infer.Errorf(infer.Internal, "the model %s", what)
}

// noRequest stands for all requests of a batch together.
const noRequest = -1

// put checks the outputs of a request, or of all, and makes them part of d. On an error d
// is as before. A request whose own memory can't take them is lost.
func (x *execution) put(d *draft, outputs []infer.Tensor, request int) ([]wire.Output, error) {
	first, blocks, tensors, size, resident := len(x.outputs), len(d.blocks), len(d.tensors), d.size, len(d.resident)
	for i := range outputs {
		o, err := x.output(d, &outputs[i], request)
		if err != nil {
			x.outputs, d.blocks, d.tensors, d.size = x.outputs[:first], d.blocks[:blocks], d.tensors[:tensors], size
			x.dropResident(d, resident)
			return nil, err
		}
		x.outputs = append(x.outputs, o)
	}
	return x.outputs[first:len(x.outputs):len(x.outputs)], nil
}

func (x *execution) output(d *draft, t *infer.Tensor, request int) (wire.Output, error) {
	if !t.Place.IsZero() {
		return x.deviceOutput(d, t, request)
	}
	if err := checkOutput(t); err != nil {
		return wire.Output{}, err
	}
	at := len(x.shapes)
	x.shapes = append(x.shapes, t.Shape...)
	o := wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: x.shapes[at:len(x.shapes):len(x.shapes)]}
	if x.placed && request != noRequest {
		s, in, err := x.store(request, t)
		if err != nil {
			x.lose(request, err)
		}
		if in || err != nil {
			o.Data = s
			return o, err
		}
	}
	if len(t.Data) == 0 {
		o.Data = x.inst.transport.place(d, nil, nil)
		return o, nil
	}
	if s, ok := x.passed(t.Data, request); ok {
		o.Data = s
		return o, nil
	}
	data := t.Data
	b := x.blockOf(data)
	if b == nil {
		mem, err := x.alloc(int64(len(data)))
		if err != nil {
			return wire.Output{}, err
		}
		copy(mem, data)
		data, b = mem, x.blocks[len(x.blocks)-1]
	}
	o.Data = x.inst.transport.place(d, b, data)
	return o, nil
}

func (x *execution) blockOf(data []byte) *block {
	for _, b := range x.blocks {
		if b.holds(data) {
			return b
		}
	}
	return nil
}

// checkOutput refuses data that does not fit shape and datatype.
func checkOutput(t *infer.Tensor) error {
	n, err := infer.Elements(t.Shape)
	if err != nil {
		return infer.Errorf(infer.Internal, "output '%s': %w", t.Name, err)
	}
	got, want, unit := int64(len(t.Data)), n, "elements"
	switch size := t.Datatype.Size(); {
	case t.Datatype == infer.Bytes:
		if got, err = infer.CountBytesElements(t.Data); err != nil {
			return infer.Errorf(infer.Internal, "output '%s' of shape %v: %w", t.Name, t.Shape, err)
		}
	case size == 0:
		return infer.Errorf(infer.Internal, "output '%s' has no datatype", t.Name)
	case n > (1<<63-1)/size:
		return infer.Errorf(infer.Internal, "output '%s' has shape %v, which no memory holds", t.Name, t.Shape)
	default:
		want, unit = n*size, "bytes"
	}
	if got != want {
		return infer.Errorf(infer.Internal, "output '%s' of %s %v has %d %s, want %d", t.Name, t.Datatype, t.Shape, got, unit, want)
	}
	return nil
}

// maxText bounds error texts, so that every result fits into memory somehow.
const maxText = 16 << 10

func textOf(err error) string {
	s := err.Error()
	if s == "" {
		return "the model failed without a text"
	}
	if len(s) > maxText {
		s = s[:maxText]
	}
	return s
}
