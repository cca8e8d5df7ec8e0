package infer

import "sync/atomic"

// Budget counts memory that many requests share a limit of, in bytes: the heap memory of responses, from where a
// response is made until it is written or dropped. What takes of it gives back as much. A nil Budget counts nothing
// and never refuses. Safe for concurrent use.
type Budget struct {
	Limit int64 // bytes at one time; 0: no limit

	used    atomic.Int64
	refused Refusal // by Take, of what the whole limit had room for
}

// CountFrom is the size in bytes from which responses are counted one by one. Smaller ones are bounded by the number
// of connections, and counting each would cost more than it tells.
const CountFrom = 4 << 10

// Take counts n more bytes. Over the limit it counts nothing and is Unavailable with reason memory_full.
func (b *Budget) Take(n int64) error {
	if b == nil || n == 0 {
		return nil
	}
	used := b.used.Add(n)
	if b.Limit == 0 || used <= b.Limit {
		return nil
	}
	b.used.Add(-n)
	if n <= b.Limit {
		b.refused.Note()
	}
	return Refusef(Unavailable, ReasonMemory,
		"%d bytes of responses are being held, the most is %d and this one needs %d", used-n, b.Limit, n)
}

// Force counts n more bytes, which are there already, whatever the limit.
func (b *Budget) Force(n int64) {
	if b != nil {
		b.used.Add(n)
	}
}

// Give counts n bytes less; they were taken before.
func (b *Budget) Give(n int64) {
	if b != nil {
		b.used.Add(-n)
	}
}

// Used is how many bytes are counted.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Scarce says that more than half of the limit is used, or that Take refused something in the last two seconds that
// the whole limit had room for.
func (b *Budget) Scarce() bool {
	if b == nil || b.Limit == 0 {
		return false
	}
	return b.used.Load() > b.Limit/2 || b.refused.Recent()
}

// Counted counts data, which is on the heap, until the last Release of the memory that is returned, whose one
// reference is the caller's. Data with room for less than CountFrom bytes is not counted: nil. An error is Take's.
func (b *Budget) Counted(data []byte) (*Buffer, error) {
	n := int64(cap(data))
	if b == nil || n < CountFrom {
		return nil, nil
	}
	if err := b.Take(n); err != nil {
		return nil, err
	}
	return NewBuffer(data, func(*Buffer) { b.Give(n) }), nil
}

// Alloc makes an empty slice with room for n bytes, counted as by Counted before it is made.
func (b *Budget) Alloc(n int64) ([]byte, *Buffer, error) {
	if b == nil || n < CountFrom {
		return make([]byte, 0, n), nil, nil
	}
	if err := b.Take(n); err != nil {
		return nil, nil, err
	}
	data := make([]byte, 0, n)
	return data, NewBuffer(data, func(*Buffer) { b.Give(n) }), nil
}
