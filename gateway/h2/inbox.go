package h2

import (
	"encoding/binary"

	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/infer"
)

// inbox are the messages of a streaming call that were received and not read. What they
// hold is bounded by the stream's window, which is credited as they are read, and for the
// one that is read next as it comes, since it may be larger than the window. Small ones that
// pile up are packed, so that they hold little more than their bytes.
type inbox struct {
	waiting []waiting
	came    int64 // bytes of messages that arrived, their prefixes included
	taken   int64 // and were read
	given   int64 // and are credited
	err     error // what follows them; nil: more may come
	closed  bool
	news    chan struct{} // a token; made by the first who waits
}

// waiting is a message, or several in a chunk of memory, each behind its prefix.
type waiting struct {
	incoming
	chunk    bool
	at, used int // of the chunk: what was taken, and what is there
}

// Messages up to packBelow are packed into chunks once packFrom wait.
const (
	packFrom  = 16
	packBelow = 1 << 10
	chunkSize = 16 << 10
)

// put adds a complete message.
func (b *inbox) put(st *Stream, in *incoming) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if b.closed || b.err != nil {
		st.c.drop(in)
		return
	}
	if len(b.waiting) >= packFrom && in.length <= packBelow {
		if b.err = b.packLocked(st, in); b.err != nil {
			b.wakeLocked()
		}
		st.c.drop(in)
		return
	}
	b.waiting = append(b.waiting, waiting{incoming: *in})
	b.wakeLocked()
}

// packLocked copies a message into the last chunk. Whoever reads is awake: others wait.
func (b *inbox) packLocked(st *Stream, in *incoming) error {
	last := &b.waiting[len(b.waiting)-1]
	if !last.chunk || len(last.memory.Data)-last.used < len(in.prefix)+len(in.data) {
		memory, err := st.c.s.deps.Memory.Body(chunkSize)
		if err != nil {
			return err
		}
		b.waiting = append(b.waiting, waiting{incoming: incoming{memory: memory}, chunk: true})
		last = &b.waiting[len(b.waiting)-1]
	}
	last.used += copy(last.memory.Data[last.used:], in.prefix[:])
	last.used += copy(last.memory.Data[last.used:], in.data)
	return nil
}

// nextLocked takes the first message out.
func (b *inbox) nextLocked(st *Stream) (incoming, error) {
	first := &b.waiting[0]
	if !first.chunk {
		in := first.incoming
		b.popLocked()
		return in, nil
	}
	var in incoming
	chunk := first.memory.Data[first.at:first.used]
	n := copy(in.prefix[:], chunk)
	in.length, in.compressed = int64(binary.BigEndian.Uint32(in.prefix[1:])), in.prefix[0] == 1
	n += int(in.length)
	if in.length > 0 {
		memory, err := st.c.s.deps.Memory.Body(in.length)
		if err != nil {
			return in, err
		}
		in.memory, in.data, in.got = memory, memory.Data[:in.length], in.length
		copy(in.data, chunk[len(in.prefix):n])
	}
	if first.at += n; first.at == first.used {
		first.memory.Release()
		b.popLocked()
	}
	return in, nil
}

func (b *inbox) popLocked() {
	b.waiting[0] = waiting{}
	b.waiting = b.waiting[1:]
}

// end says what follows the last message.
func (b *inbox) end(st *Stream, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.wakeLocked()
	}
}

func (b *inbox) wakeLocked() {
	if b.news == nil {
		return
	}
	select {
	case b.news <- struct{}{}:
	default:
	}
}

// take waits for the next message.
func (b *inbox) take(st *Stream) (*infer.Buffer, []byte, error) {
	for {
		st.mu.Lock()
		if len(b.waiting) > 0 {
			in, err := b.nextLocked(st)
			b.taken += int64(len(in.prefix) + len(in.data))
			n := b.dueLocked()
			st.mu.Unlock()
			if err != nil {
				return nil, nil, err
			}
			if st.creditBy(n) {
				st.c.flush(false)
			}
			if !in.compressed {
				return in.memory, in.data, nil
			}
			defer in.memory.Release()
			return st.c.s.decompress(st.head.encoding, in.data, nil)
		}
		err := b.err
		if b.news == nil {
			b.news = make(chan struct{}, 1)
		}
		news := b.news
		st.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		select {
		case <-news:
		case <-st.Done():
			return nil, nil, status.FromContextError(st.Err()).Err()
		}
	}
}

// arrived counts n bytes of messages that came, and says how many are to be credited.
func (b *inbox) arrived(st *Stream, n int) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	b.came += int64(n)
	return b.dueLocked()
}

// dueLocked is how many more bytes are to be credited: those that were read; and where none
// waits to be, all that came, since nothing is read before the rest of them came.
func (b *inbox) dueLocked() int {
	due := b.taken
	if len(b.waiting) == 0 {
		due = max(due, b.came)
	}
	n := max(due-b.given, 0)
	b.given += n
	return int(n)
}

// unread says that messages wait to be read.
func (b *inbox) unread(st *Stream) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(b.waiting) > 0
}

// close drops what was not read.
func (b *inbox) close(st *Stream) {
	st.mu.Lock()
	defer st.mu.Unlock()
	b.closed = true
	for i := range b.waiting {
		st.c.drop(&b.waiting[i].incoming)
	}
	b.waiting = nil
}
