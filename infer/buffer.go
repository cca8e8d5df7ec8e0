package infer

import (
	"fmt"
	"sync/atomic"
)

// Buffer is counted memory: the last Release gives it back. It starts with one
// reference, its maker's. The zero value and nil are buffers without memory whose
// Retain and Release do nothing, so plain garbage-collected bytes need none.
type Buffer struct {
	Data []byte // valid while a reference is held; nil after the last Release

	refs atomic.Int32
	free func(*Buffer)
}

// NewBuffer counts references to data; free runs once, after the last Release, on
// the goroutine that released it. Data is still set then.
func NewBuffer(data []byte, free func(*Buffer)) *Buffer {
	b := &Buffer{}
	b.Reset(data, free)
	return b
}

// Reset makes b a buffer with one reference again, for a pool of Buffers. It panics
// when references are held.
func (b *Buffer) Reset(data []byte, free func(*Buffer)) {
	if n := b.refs.Load(); n != 0 {
		panic(fmt.Sprintf("infer: Buffer reset with %d references held", n))
	}
	b.Data, b.free = data, free
	b.refs.Store(1)
}

// Retain adds a reference. The caller must hold one.
func (b *Buffer) Retain() {
	if b == nil || b.free == nil {
		return
	}
	if b.refs.Add(1) <= 1 {
		panic("infer: Buffer retained after its last Release")
	}
}

// Release drops a reference; the last one frees the memory.
func (b *Buffer) Release() {
	if b == nil || b.free == nil {
		return
	}
	switch n := b.refs.Add(-1); {
	case n == 0:
		free := b.free
		free(b)
	case n < 0:
		panic("infer: Buffer released more often than retained")
	}
}
