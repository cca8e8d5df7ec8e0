package workers

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
	"github.com/sluice-serve/sluice/workers/wire"
)

// AllocIn fits backend.Memory.
func (x *execution) AllocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error {
	if x.kept != nil {
		return x.misused(throughBatch)
	}
	return x.allocIn(t, n, kind)
}

func (x *execution) allocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error {
	if n < 0 {
		return infer.Errorf(infer.Internal, "the model asked for %d bytes of memory", n)
	}
	if kind == infer.DeviceMemory && x.inst.gpu != nil && n > 0 && t.Datatype != infer.Bytes {
		if p, ok, err := x.deviceTarget(t.Name, n); ok || err != nil {
			t.Data, t.Place = nil, p
			return err
		}
		b, err := x.takeDevice(n)
		if err == nil {
			b.writable = true
			t.Data, t.Place = nil, x.addBuffer(b)
			return nil
		}
		x.inst.log.Debug("an output is made in host memory", "output", t.Name, "error", err)
	}
	var mem []byte
	var err error
	if x.kept != nil {
		mem, err = x.alloc(n)
	} else {
		mem, err = x.AllocOutput(t.Name, n)
	}
	if err == nil {
		t.Data, t.Place = mem, infer.Place{}
	}
	return err
}

// deviceTarget is the memory of the instance's device where a client wants an output, if its
// request is alone and nobody reads what lies there.
func (x *execution) deviceTarget(name string, n int64) (p infer.Place, ok bool, err error) {
	i := x.only()
	if i < 0 || !x.placed || x.kept != nil {
		return p, false, nil
	}
	t, ok := x.target(i, name)
	if !ok {
		return p, false, nil
	}
	at, ok := t.region.Pointer(t.off)
	if !ok {
		return p, false, nil
	}
	if err := t.fits(name, n); err != nil {
		return p, false, err
	}
	if !t.region.Writable() || at%alignment != 0 || !x.isFree(i, name, &t, n) {
		return p, false, nil
	}
	return x.addBuffer(deviceBuffer{at: at, size: n, writable: true}), true, nil
}

// deviceOutput is output for a tensor in device memory. It stays there where its request, or all
// of the batch, let it, and goes to where its request wants it, or to the host.
func (x *execution) deviceOutput(d *draft, t *infer.Tensor, request int) (wire.Output, error) {
	b, err := x.checkDeviceOutput(t)
	if err != nil {
		return wire.Output{}, err
	}
	at := len(x.shapes)
	x.shapes = append(x.shapes, t.Shape...)
	o := wire.Output{Name: t.Name, Datatype: t.Datatype, Shape: x.shapes[at:len(x.shapes):len(x.shapes)]}
	if x.placed && request != noRequest {
		if to, ok := x.target(request, t.Name); ok {
			if o.Data, err = x.storeDevice(request, &to, t.Name, b); err != nil {
				x.lose(request, err)
			}
			return o, err
		}
	}
	if b.size == 0 {
		o.Data = x.inst.transport.place(d, nil, nil)
		return o, nil
	}
	if x.mayStay(t.Name, request) {
		if s, ok := x.stay(d, b); ok {
			o.Data = s
			return o, nil
		}
	}
	mem, err := x.alloc(b.size)
	if err == nil {
		err = x.inst.gpu.Read(mem, b.at)
	}
	if err != nil {
		return wire.Output{}, err
	}
	o.Data = x.inst.transport.place(d, x.blocks[len(x.blocks)-1], mem)
	return o, nil
}

// checkDeviceOutput finds the memory of an output, which must fit its shape and datatype.
func (x *execution) checkDeviceOutput(t *infer.Tensor) (deviceBuffer, error) {
	b, ok := x.bufferAt(t.Place)
	if !ok || t.Data != nil || t.Datatype == infer.Bytes {
		return b, infer.Errorf(infer.Internal, "output '%s' of %s lies in no memory of its batch", t.Name, t.Datatype)
	}
	want, err := infer.ByteSize(t.Datatype, t.Shape)
	if err != nil || t.Datatype == infer.Invalid || want != b.size {
		return b, infer.Errorf(infer.Internal, "output '%s' of %s %v has %d bytes of device memory, want %d", t.Name,
			t.Datatype, t.Shape, b.size, want)
	}
	return b, nil
}

// storeDevice copies an output to where its request wants it, unless it was made there.
func (x *execution) storeDevice(request int, to *target, name string, b deviceBuffer) (s wire.Segment, err error) {
	if err := to.fits(name, b.size); err != nil {
		return s, err
	}
	switch at, onDevice := to.region.Pointer(to.off); {
	case !to.region.Writable():
		err = infer.Errorf(infer.InvalidArg, "output '%s' can't be written to the memory that was named for it", name)
	case onDevice && at != b.at:
		err = x.inst.gpu.Copy(at, b.at, b.size)
	case !onDevice:
		err = x.toRegion(to, b)
	}
	return wire.InRegion(to.region.Slot(), to.off, b.size), err
}

// toRegion copies from the device to a client's host memory, which may be taken away at any time.
func (x *execution) toRegion(to *target, b deviceBuffer) error {
	if x.device.bounce == nil {
		x.device.bounce = make([]byte, bounceSize)
	}
	for done := int64(0); done < b.size; {
		mem := x.device.bounce[:min(b.size-done, bounceSize)]
		if err := x.inst.gpu.Read(mem, b.at+cuda.Pointer(done)); err != nil {
			return err
		}
		if err := to.region.Write(to.off+done, mem); err != nil {
			return err
		}
		done += int64(len(mem))
	}
	return nil
}

// mayStay says that an output of a request, or of all, may stay in device memory: who asked for
// it shares memory with the worker, and names it in batches of its own.
func (x *execution) mayStay(name string, request int) bool {
	if _, ok := x.inst.transport.(*mailbox); !ok || !x.resident {
		return false
	}
	if request != noRequest {
		return x.requests[request].mayStay(name)
	}
	for i := range x.requests {
		if !x.requests[i].mayStay(name) {
			return false
		}
	}
	return true
}

func (r *request) mayStay(name string) bool {
	i := slices.Index(r.wire.Outputs, name)
	return i >= 0 && i < len(r.wire.Places) && r.wire.Places[i] == wire.Resident
}

// stay gives a batch's memory a slot of its connection, which the draft then owns. Memory of a
// client does not stay: it may be taken away. Where all slots are taken nothing does.
func (x *execution) stay(d *draft, b deviceBuffer) (s wire.Segment, ok bool) {
	if b.block == nil {
		return s, false
	}
	b.block.refs.Add(1)
	slot, err := x.inst.connection.regions.AddResident(&residentTensor{b.block, b.at}, b.size)
	if err != nil {
		x.inst.log.Debug("an output is copied to host memory", "error", err)
		return s, false
	}
	d.resident = append(d.resident, slot)
	return wire.InRegion(slot, 0, b.size), true
}

// dropResident lets go of the resident outputs of a draft from the first on: it was not sent.
func (x *execution) dropResident(d *draft, first int) {
	for _, slot := range d.resident[first:] {
		x.inst.connection.regions.Drop(slot)
	}
	d.resident = d.resident[:first]
}

// onHost copies outputs in device memory to the host, for those that are cut by what a config says.
func (x *execution) onHost(outputs []infer.Tensor) ([]infer.Tensor, error) {
	if !slices.ContainsFunc(outputs, func(t infer.Tensor) bool { return !t.Place.IsZero() }) {
		return outputs, nil
	}
	outputs = slices.Clone(outputs)
	for i := range outputs {
		t := &outputs[i]
		if t.Place.IsZero() {
			continue
		}
		b, ok := x.bufferAt(t.Place)
		if !ok {
			return nil, infer.Errorf(infer.Internal, "output '%s' lies in no memory of its batch", t.Name)
		}
		mem, err := x.alloc(b.size)
		if err == nil {
			err = x.inst.gpu.Read(mem, b.at)
		}
		if err != nil {
			return nil, err
		}
		t.Data, t.Place = mem, infer.Place{}
	}
	return outputs, nil
}
