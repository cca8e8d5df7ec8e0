package stats

import "time"

// Counts are what was counted of a model version since it was loaded first.
type Counts struct {
	Requests uint64        // that ended, well or not; refusals of what was invalid are not in it
	Failed   uint64        // of them, by no fault of the caller
	Executed uint64        // requests of batches that came back
	Compute  time.Duration // of those batches
}

// Counts reads the counters, each for itself.
func (m *Model) Counts() Counts {
	c := Counts{Executed: m.requests.Load(), Compute: time.Duration(m.computeNS.Load())}
	for i := range m.failures {
		n := m.failures[i].Load()
		c.Requests += n
		if failure(i) != canceled {
			c.Failed += n
		}
	}
	c.Requests += m.success.Load()
	return c
}

// batchEnded counts a batch for Counts.
func (m *Model) batchEnded(requests int, ns uint64) {
	m.requests.Add(uint64(max(requests, 0)))
	m.computeNS.Add(ns)
}

// Machine gives a function that reads the shares of the machine's processors and memory
// that are in use, from 0 to 1, the former since the call before; negative: not known.
func Machine() func() (cpu, memory float64) {
	c := newCPUReader("/proc")
	return func() (cpu, memory float64) {
		cpu, memory = -1, -1
		if u, ok := c.utilization(); ok {
			cpu = u
		}
		if total, available, ok := c.memory(); ok && total > 0 {
			memory = 1 - float64(min(available, total))/float64(total)
		}
		return cpu, memory
	}
}
