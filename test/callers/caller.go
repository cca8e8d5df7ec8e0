package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

// width is the number of elements of a tensor.
const width = 16

// again is how long a caller whose call failed waits.
const again = 20 * time.Millisecond

// caller makes one call after the other. Its goroutine alone touches it.
type caller struct {
	o    *options
	kind *kind
	rng  *rand.Rand
	// failed says that the last call got no answer.
	failed bool
}

// loop makes calls until ctx ends; a call that has begun is seen to its end.
func (c *caller) loop(ctx context.Context, protocol string, call func(context.Context, transport)) {
	via, err := open(c.o, protocol)
	if err != nil {
		c.kind.add(time.Now(), err)
		return
	}
	defer via.close()
	for ctx.Err() == nil {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.o.patience)
		c.failed = false
		call(own, via)
		cancel()
		wait := c.o.pace
		if c.failed {
			wait = max(wait, again)
		}
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}
}

// unary asks one of the models.
func (c *caller) unary(ctx context.Context, via transport) {
	m := c.o.models[c.rng.IntN(len(c.o.models))]
	var in []int32
	if c.o.distinct > 0 {
		in = make([]int32, width)
		key := c.rng.Int32N(int32(c.o.distinct))
		for i := range in {
			in[i] = key*versioned + int32(i)
		}
	} else {
		in = checked.Values(c.rng, width)
	}
	begin := time.Now()
	version, out, err := via.ask(ctx, m, in, c.rng.IntN(4) > 0)
	if err == nil {
		err = m.check(in, out, version, begin)
	}
	c.add(begin, err)
}

func (c *caller) add(begin time.Time, err error) {
	c.kind.add(begin, err)
	var wrong *checked.Wrong
	c.failed = err != nil && !errors.As(err, &wrong)
}

// sequence is one correlation ID, with one life after the other.
type sequence struct {
	id      any
	headers bool // that name the sequence are sent
	lives   int
	sum     int32
	left    int // steps of this life; 0: the next one begins a life
}

// newSequence gives the i'th caller of a protocol its ID, and says how it names it.
func newSequence(protocol string, i int) *sequence {
	s := &sequence{headers: i%2 == 1}
	if s.id = fmt.Sprintf("%s %d", protocol, i); i%4 < 2 {
		s.id = uint64(protocol[0])*1000 + uint64(i)
	}
	return s
}

// step makes the next call of a sequence. What is refused, or got no answer, or a wrong
// one, ends the life for the caller: the next call has the START flag, and the same
// correlation ID. Some lives are left without the END flag.
func (c *caller) step(ctx context.Context, via transport, s *sequence) {
	step := checked.Step{ID: s.id, Value: int32(c.rng.Uint32())}
	if s.left == 0 {
		s.lives++
		s.left, s.sum, step.Start = 4+c.rng.IntN(12), 0, true
	}
	s.left--
	step.End = s.left == 0 && s.lives%4 != 0
	var headers []string
	if s.headers {
		headers = []string{"x-sluice-sequence", fmt.Sprint(s.id)}
		if step.Start {
			headers = append(headers, "x-sluice-sequence-start", "true")
		}
		if step.End {
			headers = append(headers, "x-sluice-sequence-end", "true")
		}
	}
	s.sum += step.Value
	begin := time.Now()
	out, err := via.step(ctx, c.o.sequences, step, headers)
	if err == nil && (len(out) != 1 || out[0] != s.sum) {
		err = checked.Wrongf("%s: a sum of another life, START %t", c.o.sequences, step.Start)
	}
	if err != nil {
		s.left = 0
	}
	c.add(begin, err)
}
