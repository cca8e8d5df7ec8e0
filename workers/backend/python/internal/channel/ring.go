package channel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// HeaderSize is that of a frame's header in bytes.
	HeaderSize = 16
	// MaxBody is the largest body of a frame that lies in its ring.
	MaxBody = 131072 - HeaderSize
	// Outside is the flag of a frame whose body lies in the exchange memory.
	Outside = 1

	// endMark is more frames than anybody announces.
	endMark = 1 << 40

	roomWait = time.Millisecond // between looks for room in a ring that is full
)

var (
	// ErrClosed is the end of the other side.
	ErrClosed = errors.New("channel: the other side has ended")
	// ErrCorrupt is what the other side may never write.
	ErrCorrupt = errors.New("channel: nonsense in a ring")
)

// Frame is a frame that was read.
type Frame struct {
	Kind  Kind
	Flags uint8
	ID    uint64
	Body  []byte // the reader's own memory, valid until its next frame
}

// Writer is the end of a ring that frames are written to.
type Writer struct {
	mem   []byte
	done  *atomic.Uint64
	event *os.File
	stop  <-chan struct{}

	mu sync.Mutex
	at uint64 // guarded by mu: bytes that were written, ever
}

// Writer is the end of a ring that is written to. It gives up waiting for room when stop is
// closed. There must be one for a ring.
func (c *Channel) Writer(ring int, stop <-chan struct{}) *Writer {
	return &Writer{mem: c.ring(ring), done: c.done(ring), event: c.events[ring], stop: stop}
}

// Write writes a frame, of a body of at most MaxBody, and announces it. It waits for room.
func (w *Writer) Write(kind Kind, flags uint8, id uint64, body []byte) error {
	if len(body) > MaxBody {
		return fmt.Errorf("channel: a frame of kind %d has %d bytes, more than %d", kind, len(body), MaxBody)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	pad, size := w.need(body)
	if err := w.waitRoom(pad + size); err != nil {
		return err
	}
	return w.put(kind, flags, id, body, pad, size)
}

// TryWrite is Write where that need not wait, for room or for another writer, and the body has at most MaxBody bytes;
// else it does nothing and gives false.
func (w *Writer) TryWrite(kind Kind, id uint64, body []byte) (done bool, err error) {
	if len(body) > MaxBody || !w.mu.TryLock() {
		return false, nil
	}
	defer w.mu.Unlock()
	pad, size := w.need(body)
	if !w.room(pad + size) {
		return false, nil
	}
	return true, w.put(kind, 0, id, body, pad, size)
}

// need is what a frame with that body takes: padding before it, and itself. The caller holds mu.
func (w *Writer) need(body []byte) (pad, size uint64) {
	size = uint64(align(HeaderSize + len(body)))
	if rest := ringSize - w.at%ringSize; rest < size {
		pad = rest
	}
	return pad, size
}

// put writes a frame where there is room, and announces it. The caller holds mu.
func (w *Writer) put(kind Kind, flags uint8, id uint64, body []byte, pad, size uint64) error {
	at := w.at % ringSize
	if pad > 0 {
		binary.LittleEndian.PutUint64(w.mem[at:], pad)
		at = 0
	}
	b := w.mem[at:][:size]
	binary.LittleEndian.PutUint32(b, uint32(size))
	b[4], b[5], b[6], b[7] = byte(kind), flags, 0, 0
	binary.LittleEndian.PutUint64(b[8:], id)
	clear(b[HeaderSize+copy(b[HeaderSize:], body):])
	w.at += pad + size
	return add(w.event, 1)
}

// waitRoom waits until n more bytes are free. The caller holds mu.
func (w *Writer) waitRoom(n uint64) error {
	if w.room(n) {
		return nil
	}
	t := time.NewTicker(roomWait)
	defer t.Stop()
	for !w.room(n) {
		select {
		case <-t.C:
		case <-w.stop:
			return ErrClosed
		}
	}
	return nil
}

// room says that n more bytes are free. A reader that says nonsense gets nothing.
func (w *Writer) room(n uint64) bool {
	used := w.at - w.done.Load()
	return used <= ringSize && n <= ringSize-used
}

// Reader is the end of a ring that frames are read from.
type Reader struct {
	mem   []byte
	done  *atomic.Uint64
	event *os.File
	from  *Exchange

	at    uint64 // bytes that were read, ever
	left  uint64 // announced frames that were not read
	ended bool   // none will be announced any more
	frame []byte // the frame that was read
	word  [8]byte
}

// Reader is the end of a ring that is read from. There must be one for a ring.
func (c *Channel) Reader(ring int) *Reader {
	return &Reader{mem: c.ring(ring), done: c.done(ring), event: c.events[ring], from: c.Exchange}
}

// Next waits for a frame and reads it, on a goroutine of any thread. ErrClosed is the end (End),
// when every frame that was announced before is read. It fails with ErrCorrupt.
func (r *Reader) Next() (Frame, error) { return r.next(r.event.Read) }

// NextHere is Next for a goroutine that is locked to its thread: it waits in the system call, so
// that the thread is woken by the other process.
func (r *Reader) NextHere() (Frame, error) {
	return r.next(func(b []byte) (int, error) { return unix.Read(int(r.event.Fd()), b) })
}

func (r *Reader) next(read func([]byte) (int, error)) (Frame, error) {
	for r.left == 0 {
		if r.ended {
			return Frame{}, ErrClosed
		}
		n, err := read(r.word[:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return Frame{}, fmt.Errorf("channel: read eventfd: %w", err)
		case n != len(r.word):
			return Frame{}, fmt.Errorf("channel: an eventfd gave %d bytes", n)
		}
		r.left = binary.NativeEndian.Uint64(r.word[:])
		if r.left >= endMark {
			r.ended, r.left = true, r.left%endMark
		}
	}
	r.left--
	return r.read()
}

// read reads an announced frame.
func (r *Reader) read() (Frame, error) {
	for {
		at := r.at % ringSize
		head := binary.LittleEndian.Uint64(r.mem[at:]) // one look: it may change
		size, kind := head&(1<<32-1), Kind(head>>32)
		if size == 0 || size%8 != 0 || size > ringSize-at || kind != 0 && (size < HeaderSize ||
			size > MaxBody+HeaderSize) {
			return Frame{}, fmt.Errorf("%w: a frame of %d bytes at %d", ErrCorrupt, size, at)
		}
		if kind == 0 {
			if at+size != ringSize {
				return Frame{}, fmt.Errorf("%w: padding of %d bytes at %d", ErrCorrupt, size, at)
			}
			r.at += size
			continue
		}
		r.frame = append(r.frame[:0], r.mem[at:at+size]...)
		r.at += size
		r.done.Store(r.at)
		f := Frame{Kind: kind, Flags: uint8(head >> 40), ID: binary.LittleEndian.Uint64(r.frame[8:]),
			Body: r.frame[HeaderSize:]}
		if f.Flags&Outside != 0 {
			return r.outside(f)
		}
		return f, nil
	}
}

// outside fetches a body that lies in the exchange memory, and frees that.
func (r *Reader) outside(f Frame) (Frame, error) {
	d := Decoder{body: f.Body}
	s := d.Segment()
	if d.err != nil {
		return f, d.err
	}
	data, err := r.from.Answered(s)
	if err != nil {
		return f, err
	}
	f.Body = append([]byte(nil), data...)
	r.from.FreeAnswered(s)
	return f, nil
}

// End has the reader of a ring return ErrClosed once it has read what was announced: for the end
// of who would have written. It comes once.
func (c *Channel) End(ring int) error { return add(c.events[ring], endMark) }

// add adds to an eventfd.
func add(event *os.File, n uint64) error {
	var word [8]byte
	binary.NativeEndian.PutUint64(word[:], n)
	if _, err := event.Write(word[:]); err != nil {
		return fmt.Errorf("channel: write eventfd: %w", err)
	}
	return nil
}

func align(n int) int { return (n + 7) &^ 7 }
