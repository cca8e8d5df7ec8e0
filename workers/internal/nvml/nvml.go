//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/sluice-serve/sluice/proto/worker"
)

// GPU is one GPU.
type GPU struct {
	library nvml.Interface
	device  nvml.Device
	fixed   *worker.Device
	energy  uint64 // millijoules when it was opened
}

// Open finds the GPU of a CUDA ordinal of this process; visible is the value of
// CUDA_VISIBLE_DEVICES. It returns nil where there is nothing to read.
func Open(ordinal int, visible string) *GPU {
	index, uuid, ok := identifier(ordinal, visible)
	if !ok {
		return nil
	}
	l := nvml.New()
	if l.Init() != nvml.SUCCESS {
		return nil
	}
	var d nvml.Device
	var ret nvml.Return
	if uuid != "" {
		d, ret = l.DeviceGetHandleByUUID(uuid)
	} else {
		d, ret = l.DeviceGetHandleByIndex(index)
	}
	if ret != nvml.SUCCESS {
		l.Shutdown()
		return nil
	}
	g := &GPU{library: l, device: d, fixed: &worker.Device{Kind: worker.Device_GPU, Id: int32(ordinal)}}
	if id, ret := d.GetUUID(); ret == nvml.SUCCESS {
		g.fixed.Uuid = id
	}
	if name, ret := d.GetName(); ret == nvml.SUCCESS {
		g.fixed.Name = name
	}
	if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
		g.energy = mj
	}
	return g
}

// Close ends the use of the library. A nil GPU may be closed.
func (g *GPU) Close() {
	if g != nil {
		g.library.Shutdown()
	}
}

// State reads the figures; those that this GPU doesn't tell are 0. It is an error
// where the GPU has gone.
func (g *GPU) State() (*worker.DeviceState, error) {
	m, ret := g.device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read GPU %d: %s", g.fixed.GetId(), g.library.ErrorString(ret))
	}
	s := &worker.DeviceState{Device: g.fixed, MemoryUsedBytes: int64(m.Used), MemoryTotalBytes: int64(m.Total)}
	if u, ret := g.device.GetUtilizationRates(); ret == nvml.SUCCESS {
		s.Utilization = float64(u.Gpu) / 100
	}
	if mw, ret := g.device.GetPowerUsage(); ret == nvml.SUCCESS {
		s.PowerWatts = float64(mw) / 1000
	}
	if mw, ret := g.device.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		s.PowerLimitWatts = float64(mw) / 1000
	}
	if mj, ret := g.device.GetTotalEnergyConsumption(); ret == nvml.SUCCESS && mj > g.energy {
		s.EnergyJoules = float64(mj-g.energy) / 1000
	}
	return s, nil
}
