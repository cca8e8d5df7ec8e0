package workers

import (
	"math/bits"
	"time"
)

const (
	learnRuns = 4  // measured runs of either kind before the faster one is taken
	probeRuns = 64 // every so many batches the other kind is tried again
	meanRuns  = 8  // the share of a new measurement in the mean is one of so many
	outlier   = 2  // a measurement counts as so many means at most: the thread may have been put aside
)

// choice says of one instance whether batches whose inputs lie apart are executed request by
// request, or gathered first. It measures both and keeps to the faster, for batches of about
// the same number of requests: copying costs memory bandwidth, and what a model gains from a
// batch differs. It is plain state: durations in, decisions out.
type choice struct {
	paces [8]pace // by the bit length of the number of requests; the last for all that are larger
}

// pace is what was measured. Times are in nanoseconds a row.
type pace struct {
	asked        int
	apart, whole mean
}

// mean is the least of the first learnRuns measurements, the first of which are of what is
// cold, and then follows the rest.
type mean struct {
	n     int
	value float64
}

func (m *mean) add(v float64) {
	m.n = min(m.n+1, meanRuns)
	switch {
	case m.n == 1:
		m.value = v
	case m.n <= learnRuns:
		m.value = min(m.value, v)
	default:
		m.value += (min(v, outlier*m.value) - m.value) / float64(m.n)
	}
}

func (c *choice) pace(requests int) *pace {
	return &c.paces[min(bits.Len(uint(requests)), len(c.paces)-1)]
}

// next says whether a batch of so many requests is to be executed request by request.
func (c *choice) next(requests int) (apart bool) {
	p := c.pace(requests)
	p.asked++
	if p.apart.n < learnRuns || p.whole.n < learnRuns {
		return p.asked%2 == 1 // in turns: batches that fail are not measured
	}
	apart = p.apart.value <= p.whole.value
	if p.asked%probeRuns == 0 {
		return !apart
	}
	return apart
}

// took notes how long such a batch took, the gathering among it.
func (c *choice) took(requests, rows int, apart bool, d time.Duration) {
	p := c.pace(requests)
	v := float64(d) / float64(max(rows, 1))
	if apart {
		p.apart.add(v)
	} else {
		p.whole.add(v)
	}
}
