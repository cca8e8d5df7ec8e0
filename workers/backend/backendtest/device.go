package backendtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
)

// Device is memory of a GPU, or of what stands for one in tests.
type Device interface {
	Alloc(n int64) (pointer uint64, err error)
	Free(pointer uint64) error
	Read(to []byte, from uint64) error
	Write(to uint64, from []byte) error
	Copy(to, from uint64, n int64) error
}

// deviceTensor is memory of Device that a tensor of a Batch lies in.
type deviceTensor struct {
	at   uint64
	size int64
}

// firstDevice is the Region of a Place in the first deviceTensor.
const firstDevice = infer.MaxRegions + 1

// ToDevice moves the inputs to d, but for those of BYTES. FreeDevice ends that.
func (b *Batch) ToDevice(d Device) error {
	b.Device = d
	move := func(ts []infer.Tensor) error {
		for i := range ts {
			t := &ts[i]
			if t.Datatype == infer.Bytes || len(t.Data) == 0 {
				continue
			}
			p, err := b.takeDevice(int64(len(t.Data)))
			if err != nil {
				return err
			}
			if err := d.Write(b.device[len(b.device)-1].at, t.Data); err != nil {
				return err
			}
			t.Data, t.Place = nil, p
		}
		return nil
	}
	if err := move(b.inputs); err != nil {
		return err
	}
	for _, r := range b.own {
		if err := move(r.Request.Inputs); err != nil {
			return err
		}
	}
	return nil
}

// FreeDevice gives back all memory of the device.
func (b *Batch) FreeDevice() error {
	for _, t := range b.device {
		if err := b.Device.Free(t.at); err != nil {
			return err
		}
	}
	b.device = nil
	return nil
}

func (b *Batch) takeDevice(n int64) (infer.Place, error) {
	at, err := b.Device.Alloc(n)
	if err != nil {
		return infer.Place{}, err
	}
	b.device = append(b.device, deviceTensor{at, n})
	return infer.Place{Region: uint32(firstDevice + len(b.device) - 1), Size: n}, nil
}

// Buffer fits backend.Memory.
func (b *Batch) Buffer(t *infer.Tensor) backend.Buffer {
	if t.Place.IsZero() {
		return backend.Buffer{Data: t.Data, Size: int64(len(t.Data))}
	}
	i := int(t.Place.Region) - firstDevice
	if i < 0 || i >= len(b.device) || t.Place.Offset < 0 || t.Place.Size < 0 ||
		t.Place.Size > b.device[i].size-t.Place.Offset {
		return backend.Buffer{}
	}
	return backend.Buffer{Kind: infer.DeviceMemory, Pointer: b.device[i].at + uint64(t.Place.Offset), Size: t.Place.Size}
}

// AllocIn fits backend.Memory.
func (b *Batch) AllocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error {
	if b.kept != nil {
		return b.misuse()
	}
	return b.allocIn(t, n, kind, b.AllocOutput)
}

// allocIn is AllocIn with onHost for memory of the host.
func (b *Batch) allocIn(t *infer.Tensor, n int64, kind infer.MemoryKind,
	onHost func(name string, n int64) ([]byte, error)) error {
	if kind == infer.DeviceMemory && b.Device != nil && n > 0 && t.Datatype != infer.Bytes {
		p, err := b.takeDevice(n)
		if err == nil {
			t.Data, t.Place = nil, p
			return nil
		}
	}
	mem, err := onHost(t.Name, n)
	if err == nil {
		t.Data, t.Place = mem, infer.Place{}
	}
	return err
}

// Copy fits backend.Memory.
func (b *Batch) Copy(to, from backend.Buffer) error {
	if to.Size != from.Size {
		return b.fault("a copy from %d to %d bytes", from.Size, to.Size)
	}
	switch {
	case to.Kind != infer.DeviceMemory && from.Kind != infer.DeviceMemory:
		copy(to.Data, from.Data)
		return nil
	case to.Kind != infer.DeviceMemory:
		return b.Device.Read(to.Data, from.Pointer)
	case from.Kind != infer.DeviceMemory:
		return b.Device.Write(to.Pointer, from.Data)
	}
	return b.Device.Copy(to.Pointer, from.Pointer, to.Size)
}

// fetch copies outputs in device memory to the host, where they are compared.
func (b *Batch) fetch(outputs []infer.Tensor) ([]infer.Tensor, error) {
	outputs = slices.Clone(outputs)
	for i := range outputs {
		t := &outputs[i]
		if t.Place.IsZero() {
			continue
		}
		from := b.Buffer(t)
		if from.Kind != infer.DeviceMemory || t.Datatype == infer.Bytes || t.Data != nil {
			return nil, b.fault("output '%s' of %s lies in no memory of its batch", t.Name, t.Datatype)
		}
		t.Data, t.Place = make([]byte, from.Size), infer.Place{}
		if err := b.Device.Read(t.Data, from.Pointer); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}

// fullDevice has no memory left.
type fullDevice struct{ Device }

func (fullDevice) Alloc(n int64) (uint64, error) {
	return 0, infer.Refusef(infer.Unavailable, infer.ReasonMemory, "the device has no %d bytes", n)
}

// testDeviceMemory wants the same answers of tensors that lie in device memory, from backends
// that take it, also where some of it is missing, and a request's failure where it can't be copied.
func testDeviceMemory(t *testing.T, s Subject) {
	if !slices.Contains(s.Backend.Info().Memory, worker.MemoryKind_DEVICE) || !s.Device.GPU {
		return
	}
	if s.Memory == nil {
		t.Fatal("the subject takes device memory, and has none")
	}
	for _, m := range s.Models {
		withInstance(t, s, m, func(inst backend.Instance) {
			rounds := []int{1}
			if m.Rows > 0 {
				rounds = []int{1, 3}
			}
			for _, n := range rounds {
				m.runOnDevice(t, inst, n, s.Memory, fmt.Sprintf("%d requests on the device", n))
				m.runOnDevice(t, inst, n, fullDevice{s.Memory}, "outputs for which the device is full")
			}
			b := m.batch(1)
			b.Device = s.Memory
			b.Run(inst)
			m.check(t, "inputs on the host, outputs on the device", b)
			if err := b.FreeDevice(); err != nil {
				t.Error(err)
			}
		})
	}
}

// runOnDevice executes a batch whose inputs lie on the subject's device; outputs is where its own go.
func (m *Model) runOnDevice(t *testing.T, inst backend.Instance, n int, outputs Device, what string) {
	t.Helper()
	b := m.batch(n)
	device := outputs
	if full, ok := outputs.(fullDevice); ok {
		device = full.Device
	}
	if err := b.ToDevice(device); err != nil {
		t.Fatal(err)
	}
	b.Device = outputs
	b.Run(inst)
	m.check(t, what, b)
	if err := b.FreeDevice(); err != nil {
		t.Error(err)
	}
}

// Buffer fits backend.Memory.
func (o *openBatch) Buffer(t *infer.Tensor) backend.Buffer {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	return o.b.Buffer(t)
}

// AllocIn fits backend.Memory.
func (o *openBatch) AllocIn(t *infer.Tensor, n int64, kind infer.MemoryKind) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	return o.b.allocIn(t, n, kind, func(_ string, n int64) ([]byte, error) { return o.b.alloc(n) })
}

// Copy fits backend.Memory.
func (o *openBatch) Copy(to, from backend.Buffer) error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	return o.b.Copy(to, from)
}
