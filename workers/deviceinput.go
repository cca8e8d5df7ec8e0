package workers

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/internal/cuda"
	"github.com/sluice-serve/sluice/workers/wire"
)

// firstBuffer is what the Place of a tensor in device memory has as its Region where it is the
// first of the batch's buffers: above those of clients, so that its rows can be cut.
const firstBuffer = infer.MaxRegions + 1

// deviceBuffer is device memory that tensors of a batch lie in.
type deviceBuffer struct {
	at       cuda.Pointer
	size     int64
	block    *deviceBlock // which it is a part of; nil: it is a region's, which the execution holds
	writable bool         // AllocIn made it
}

// deviceTensors are those of one execution.
type deviceTensors struct {
	buffers []deviceBuffer
	blocks  []*deviceBlock // a reference for each
	bounce  []byte         // host memory on the way to the device
}

// bounceSize is how much is copied at a time where a client may take the memory away.
const bounceSize = 1 << 20

// addBuffer notes device memory, and makes the place of all of it.
func (x *execution) addBuffer(b deviceBuffer) infer.Place {
	x.device.buffers = append(x.device.buffers, b)
	return infer.Place{Region: uint32(firstBuffer + len(x.device.buffers) - 1), Size: b.size}
}

// bufferAt is the memory of a place that addBuffer made, or of a part of it.
func (x *execution) bufferAt(p infer.Place) (b deviceBuffer, ok bool) {
	i := int64(p.Region) - firstBuffer
	if i < 0 || i >= int64(len(x.device.buffers)) {
		return b, false
	}
	b = x.device.buffers[i]
	if p.Offset < 0 || p.Size < 0 || p.Offset > b.size || p.Size > b.size-p.Offset {
		return b, false
	}
	b.at, b.size = b.at+cuda.Pointer(p.Offset), p.Size
	return b, true
}

// takeDevice takes device memory for the batch, which has it until its end.
func (x *execution) takeDevice(n int64) (deviceBuffer, error) {
	block, err := x.inst.gpu.take(n)
	if err != nil {
		return deviceBuffer{}, err
	}
	x.device.blocks = append(x.device.blocks, block)
	return deviceBuffer{at: block.block.At, size: n, block: block}, nil
}

// releaseDevice gives back the batch's device memory but for what is resident.
func (x *execution) releaseDevice() {
	for i, b := range x.device.blocks {
		b.release()
		x.device.blocks[i] = nil
	}
	x.device.blocks, x.device.buffers = x.device.blocks[:0], x.device.buffers[:0]
}

// releaseInPlace forgets regions that the inputs lie in: they are given back.
func (x *execution) releaseInPlace() {
	for i := range x.device.buffers {
		if b := &x.device.buffers[i]; b.block == nil && !b.writable {
			b.size = 0
		}
	}
}

// deviceInput is the place of an input of which a part lies in the instance's device, where it
// is handed over there: in place, if it is one tensor of floats or nobody can change it, and else
// gathered. Integers and BOOL of a client are gathered because they are indices, and what was
// computed with once must be what is used again; BYTES are read on the host. in is false
// where the input is handed over on the host: so it is where the device has no memory left.
func (x *execution) deviceInput(i, k int) (p infer.Place, in bool, err error) {
	if x.inst.gpu == nil || x.batch.Inputs[i].Datatype == infer.Bytes || !x.touchesDevice(&x.batch.Inputs[i]) {
		return p, false, nil
	}
	parts, size, err := x.inputParts(i, k)
	if err != nil || size == 0 {
		return p, false, err
	}
	if r := parts[0].region; len(parts) == 1 && r != nil && (x.batch.Inputs[i].Datatype.IsFloat() || r.Frozen()) {
		at, _ := r.Pointer(parts[0].off)
		if uint64(at)%uint64(x.batch.Inputs[i].Datatype.Size()) == 0 {
			x.inPlace = append(x.inPlace, parts[0])
			return x.addBuffer(deviceBuffer{at: at, size: size}), true, nil
		}
	}
	b, err := x.takeDevice(size)
	if err != nil {
		x.inst.log.Debug("an input is handed over in host memory", "input", x.batch.Inputs[i].Name, "error", err)
		return p, false, nil
	}
	at := b.at
	for n := range parts {
		if err := x.toDevice(at, &parts[n]); err != nil {
			return p, false, err
		}
		at += cuda.Pointer(parts[n].n)
	}
	return x.addBuffer(b), true, nil
}

// touchesDevice says that a segment of an input lies in device memory. Regions that are not there
// are found later.
func (x *execution) touchesDevice(in *wire.Input) bool {
	return slices.ContainsFunc(in.Segments, func(s wire.Segment) bool {
		slot, _, ok := s.Region()
		if !ok {
			return false
		}
		r := x.inst.connection.regions.Acquire(slot)
		if r == nil {
			return false
		}
		defer r.Release()
		_, ok = r.Pointer(0)
		return ok
	})
}

// toDevice copies a part of an input. Trouble with a client's memory is its request's alone, and
// its elements are zeros.
func (x *execution) toDevice(to cuda.Pointer, p *part) error {
	if p.data != nil {
		return x.inst.gpu.Write(to, p.data)
	}
	if p.region != nil && !x.requests[p.request].lost {
		if from, ok := p.region.Pointer(p.off); ok {
			return x.inst.gpu.Copy(to, from, p.n)
		}
	}
	if x.device.bounce == nil {
		x.device.bounce = make([]byte, bounceSize)
	}
	for done := int64(0); done < p.n; {
		b := x.device.bounce[:min(p.n-done, bounceSize)]
		clear(b)
		if p.region != nil && !x.requests[p.request].lost {
			if err := p.region.Read(b, p.off+done); err != nil {
				x.lose(p.request, err)
				clear(b)
			}
		}
		if err := x.inst.gpu.Write(to+cuda.Pointer(done), b); err != nil {
			return err
		}
		done += int64(len(b))
	}
	return nil
}

// Buffer fits backend.Memory.
func (x *execution) Buffer(t *infer.Tensor) backend.Buffer {
	if t.Place.IsZero() {
		return backend.Buffer{Kind: x.kindOf(t.Data), Data: t.Data, Size: int64(len(t.Data))}
	}
	b, ok := x.bufferAt(t.Place)
	if !ok {
		return backend.Buffer{}
	}
	return backend.Buffer{Kind: infer.DeviceMemory, Device: x.inst.gpu.ordinal, Pointer: uint64(b.at), Size: b.size}
}

// Copy fits backend.Memory.
func (x *execution) Copy(to, from backend.Buffer) error {
	if to.Size != from.Size {
		return infer.Errorf(infer.Internal, "%d bytes can't be copied to %d", from.Size, to.Size)
	}
	toDevice, fromDevice := to.Kind == infer.DeviceMemory, from.Kind == infer.DeviceMemory
	switch g := x.inst.gpu; {
	case !toDevice && !fromDevice:
		copy(to.Data, from.Data)
		return nil
	case g == nil || toDevice && to.Device != g.ordinal || fromDevice && from.Device != g.ordinal:
		return infer.Errorf(infer.Internal, "device memory was named that the instance has none of")
	case toDevice && fromDevice:
		return g.Copy(cuda.Pointer(to.Pointer), cuda.Pointer(from.Pointer), to.Size)
	case toDevice:
		return g.Write(cuda.Pointer(to.Pointer), from.Data)
	default:
		return g.Read(to.Data, cuda.Pointer(from.Pointer))
	}
}
