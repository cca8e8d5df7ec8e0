// Package memory gives front ends the memory that request bodies are received into:
// small ones from a heap pool, large ones from the request arena, where the worker
// reads them without a copy. What is out at one time is bounded, and it tells when it runs out.
//
// Front ends call it for every body; it has no goroutine.
package memory

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/sluice-serve/sluice/infer"
)

// Arena is memory that workers see; shm.Arena fits.
type Arena interface {
	Alloc(n int64) ([]byte, error)
	Free(b []byte)
}

// ArenaFrom is the size from which a body goes into the arena: below it a copy into a
// batch slot costs less than an arena block of its own.
const ArenaFrom = 32 << 10

// Bodies hands out counted memory for bodies. The zero value has no arena and no
// bound.
type Bodies struct {
	Arena Arena
	Limit int64 // bytes out at one time; 0: no bound
	// ArenaSize is Arena's; 0: Scarce does not look at it.
	ArenaSize int64
	// Answers says the same as Scarce of the memory that workers answer into. nil: it never is.
	Answers func() bool

	out   atomic.Int64
	arena atomic.Int64 // of out, in the arena
	small sync.Pool    // of *body with cap(data) == ArenaFrom

	refused infer.Refusal // of memory to somebody who could have had some
}

type body struct {
	infer.Buffer
	heap []byte
	in   *Bodies
	done func(*infer.Buffer) // b.free, made once
}

// arenaMost is the largest block of an arena in which workers keep small blocks (shm.Arena.ReserveSmall): all but a
// sixty-fourth, or where the size is no power of two, the largest one within it.
func arenaMost(size int64) int64 {
	if size&(size-1) == 0 {
		return size - size/64
	}
	return 1 << (bits.Len64(uint64(size)) - 1)
}

// Most is the largest body that there is memory for when nothing else is out; math.MaxInt64: any is.
func (m *Bodies) Most() int64 {
	most := int64(math.MaxInt64)
	if m.Limit > 0 {
		most = m.Limit
	}
	if m.Arena != nil && m.ArenaSize > 0 {
		most = min(most, arenaMost(m.ArenaSize))
	}
	return most
}

// Fits refuses n bytes of a request that are more than Most: InvalidArg with reason too_large. nil: at
// some time there is room for them.
func (m *Bodies) Fits(n int64) error {
	if most := m.Most(); n > most {
		return infer.Refusef(infer.InvalidArg, infer.ReasonTooLarge,
			"a request of %d bytes never fits into the memory for requests, which is %d bytes", n, most)
	}
	return nil
}

// Aside copies a body that is being received out of the arena, so that its own memory there is not in
// the way of a larger one. It is counted as Body's, and the caller holds the one reference.
func (m *Bodies) Aside(data []byte) (*infer.Buffer, error) {
	n := int64(len(data))
	if err := m.count(n); err != nil {
		return nil, err
	}
	b := m.fromHeap(n)
	copy(b.Data, data)
	return b, nil
}

// count takes n bytes of the limit.
func (m *Bodies) count(n int64) error {
	out := m.out.Add(n)
	if m.Limit <= 0 || out <= m.Limit {
		return nil
	}
	m.out.Add(-n)
	m.refused.Note()
	return infer.Refusef(infer.Unavailable, infer.ReasonMemory,
		"%d bytes of request bodies are being served, the most is %d", out-n, m.Limit)
}

// Body gives n bytes, whose content is undefined. Over the limit, or when the arena
// is full, it is Unavailable with reason memory_full; for more than Most it is what Fits says. The
// caller holds the one reference.
func (m *Bodies) Body(n int64) (*infer.Buffer, error) {
	if err := m.Fits(n); err != nil {
		return nil, err
	}
	if err := m.count(n); err != nil {
		return nil, err
	}
	if n < ArenaFrom || m.Arena == nil {
		return m.fromHeap(n), nil
	}
	data, err := m.Arena.Alloc(n)
	if err != nil {
		m.out.Add(-n)
		m.refused.Note()
		return nil, err
	}
	m.arena.Add(n)
	return infer.NewBuffer(data, m.freeArena), nil
}

// Scarce says that half of what there is is out. Front ends then give a body less before
// it has come: who announces much and sends little would else take the memory of those
// who send.
func (m *Bodies) Scarce() bool {
	return m.Limit > 0 && m.out.Load() > m.Limit/2 || m.ArenaSize > 0 && m.arena.Load() > m.ArenaSize/2
}

// Pressed says that memory of bodies or of answers is scarce, or that somebody got none in the
// last two seconds who could have. Front ends then drop what they have for clients that don't
// take it. It may take a lock for each worker, so it is for those who ask now and then.
func (m *Bodies) Pressed() bool {
	return m.refused.Recent() || m.Scarce() || m.Answers != nil && m.Answers()
}

// InUse is how many bytes are out.
func (m *Bodies) InUse() int64 { return m.out.Load() }

func (m *Bodies) fromHeap(n int64) *infer.Buffer {
	b, ok := m.small.Get().(*body)
	if !ok {
		b = &body{in: m}
		b.done = b.free
	}
	if int64(cap(b.heap)) < n {
		b.heap = make([]byte, n, max(n, 1<<10))
	}
	b.Reset(b.heap[:n], b.done)
	return &b.Buffer
}

// free puts small memory back into the pool; large heap memory is left to the
// collector.
func (b *body) free(buf *infer.Buffer) {
	m := b.in
	m.out.Add(-int64(len(buf.Data)))
	buf.Data = nil
	if cap(b.heap) > ArenaFrom {
		b.heap = nil
	}
	m.small.Put(b)
}

func (m *Bodies) freeArena(buf *infer.Buffer) {
	data := buf.Data
	buf.Data = nil
	m.Arena.Free(data)
	m.arena.Add(-int64(len(data)))
	m.out.Add(-int64(len(data)))
}
