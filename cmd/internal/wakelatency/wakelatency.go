// Package wakelatency asks the kernel that cores which rest wake soon. A core that sleeps
// deeply, or that a hypervisor has taken away, takes tens of microseconds of its own and of
// who wakes it, several times for each request of a server that has little to do.
package wakelatency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"time"
)

// Device is where the kernel takes such wishes.
// Source: Documentation/power/pm_qos_interface.rst of the Linux kernel.
const Device = "/dev/cpu_dma_latency"

// Hold asks that no core takes longer than d, in whole microseconds, to wake, of all processes,
// until the file is closed or the process ends; 0 keeps cores from resting at all.
func Hold(device string, d time.Duration) (*os.File, error) {
	us := d.Microseconds()
	if us < 0 || us > math.MaxInt32 {
		return nil, fmt.Errorf("a latency of %d µs is not in [0, %d]", us, math.MaxInt32)
	}
	f, err := os.OpenFile(device, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("the kernel can't be asked to wake cores within %d µs: %w", us, err)
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, uint32(us))); err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel does not wake cores within %d µs: %w", us, err), f.Close())
	}
	return f, nil
}
