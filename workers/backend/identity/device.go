package identity

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
)

// sendOnDevice is send with outputs in device memory, or where the worker has memory instead.
func (inst *instance) sendOnDevice(b backend.Batch, i int, final bool) error {
	for k := range inst.out {
		o := &inst.out[k]
		from := b.Buffer(o)
		if err := b.AllocIn(o, from.Size, infer.DeviceMemory); err != nil {
			return err
		}
		if err := b.Copy(b.Buffer(o), from); err != nil {
			return err
		}
	}
	if i < 0 {
		return b.Outputs(inst.out)
	}
	return b.Respond(i, inst.out, nil, final)
}
