package h2

import (
	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
)

// CountedPool takes back memory of messages that a budget counts. It fits mem.BufferPool, for mem.NewBuffer.
type CountedPool struct {
	Budget *infer.Budget  // nil: nothing is counted
	Under  mem.BufferPool // where the memory goes back to; nil: it is left to the collector
}

// Get gives counted memory of Under. Take is to be asked before.
func (p *CountedPool) Get(n int) *[]byte { return p.Under.Get(n) }

// Put ends the count.
func (p *CountedPool) Put(b *[]byte) {
	p.Budget.Give(int64(cap(*b)))
	if p.Under != nil {
		p.Under.Put(b)
	}
}

// Buffer makes a buffer of data on the heap, which is counted from infer.CountFrom bytes on until it is freed. An
// error is the budget's.
func (p *CountedPool) Buffer(data []byte) (mem.Buffer, error) {
	n := int64(cap(data))
	if p == nil || p.Budget == nil || n < infer.CountFrom {
		return mem.SliceBuffer(data), nil
	}
	if err := p.Budget.Take(n); err != nil {
		return nil, err
	}
	return mem.NewBuffer(&data, p), nil
}
