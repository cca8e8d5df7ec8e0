package channel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func open(t testing.TB) *Channel {
	t.Helper()
	c, err := New("test", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Frames of all sizes come through a ring many times over, in order and whole.
func TestRing(t *testing.T) {
	c := open(t)
	w, r := c.Writer(Events, nil), c.Reader(Events)
	sizes := []int{0, 1, 7, 8, 9, 100, 4000, 65536, MaxBody - 1, MaxBody}
	const rounds = 40
	go func() {
		for i := range rounds * len(sizes) {
			body := bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)])
			if err := w.Write(Part, 2, uint64(i), body); err != nil {
				t.Errorf("frame %d: %v", i, err)
			}
		}
		if err := c.End(Events); err != nil {
			t.Error(err)
		}
	}()
	for i := range rounds * len(sizes) {
		f, err := r.Next()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		n := sizes[i%len(sizes)]
		if f.Kind != Part || f.Flags != 2 || f.ID != uint64(i) || len(f.Body) != align(n) ||
			!bytes.Equal(f.Body[:n], bytes.Repeat([]byte{byte(i)}, n)) {
			t.Fatalf("frame %d of %d bytes came as %d, kind %d, flags %d, id %d", i, n, len(f.Body), f.Kind,
				f.Flags, f.ID)
		}
	}
	if _, err := r.Next(); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v, want ErrClosed", err)
	}
}

// A writer without room gives up when the other side has ended.
func TestRingFull(t *testing.T) {
	c := open(t)
	stop := make(chan struct{})
	w := c.Writer(Replies, stop)
	for range 2 {
		if err := w.Write(Reply, 0, 1, make([]byte, MaxBody)); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if err := w.Write(Reply, 0, 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a full ring: %v, want ErrClosed", err)
	}
	if err := w.Write(Reply, 0, 1, make([]byte, MaxBody+1)); err == nil {
		t.Error("a body that no frame holds was written")
	}
	c.done(Replies).Store(1 << 60) // a reader that says it has read more than there was
	if err := w.Write(Reply, 0, 1, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a reader that lies: %v, want ErrClosed", err)
	}
}

// Headers that no writer writes are refused.
func TestCorruptHeaders(t *testing.T) {
	for _, row := range []struct {
		name string
		size uint32
		kind byte
	}{
		{"no size", 0, 1}, {"no multiple of 8", 20, 1}, {"less than a header", 8, 1}, {"beyond the ring",
			ringSize + 8, 0},
		{"more than a frame", MaxBody + HeaderSize + 8, 1}, {"padding that does not end the ring", 64, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := open(t)
			r := c.Reader(Results)
			binary.LittleEndian.PutUint32(c.ring(Results), row.size)
			c.ring(Results)[4] = row.kind
			if err := add(c.events[Results], 1); err != nil {
				t.Fatal(err)
			}
			if _, err := r.NextHere(); !errors.Is(err, ErrCorrupt) {
				t.Errorf("got %v, want ErrCorrupt", err)
			}
		})
	}
}

// A body outside of its frame is fetched, once, and only from memory that the process was given.
func TestOutside(t *testing.T) {
	c := open(t)
	w, r := c.Writer(Results, nil), c.Reader(Results)
	s, mem, err := c.Exchange.Alloc(200000, true)
	if err != nil {
		t.Fatal(err)
	}
	copy(mem, "large")
	var e Encoder
	e.Segment(s)
	for range 2 {
		if err := w.Write(Result, Outside, 7, e.Body()); err != nil {
			t.Fatal(err)
		}
	}
	f, err := r.NextHere()
	if err != nil || len(f.Body) != 200000 || string(f.Body[:5]) != "large" {
		t.Fatalf("got %d bytes, %v", len(f.Body), err)
	}
	if n := c.Exchange.InUse(); n != 0 {
		t.Errorf("%d bytes are in use after it was fetched", n)
	}
	if _, err := r.NextHere(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the same memory again: %v, want ErrCorrupt", err)
	}
}

func TestExchange(t *testing.T) {
	c := open(t)
	x := c.Exchange
	a, _, err := x.Alloc(5000, true)
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := x.Alloc(1, false)
	if err != nil || b.Offset != 8192 {
		t.Fatalf("the second block is at %d, %v; want 8192", b.Offset, err)
	}
	if _, _, err := x.Alloc(1<<20, false); infer.ReasonOf(err) != infer.ReasonMemory {
		t.Errorf("more than there is: %v, want memory_full", err)
	}
	for _, row := range []struct {
		name string
		s    Segment
		ok   bool
	}{
		{"whole", a, true}, {"part", Segment{InOurs, 4000, 1000}, true}, {"empty", Segment{InOurs, 0, 0}, true},
		{"beyond its end", Segment{InOurs, 4000, 1001}, false}, {"the worker's", b, false}, {"another area",
			Segment{InAnswer, 0, 1}, false},
		{"nobody's", Segment{InOurs, 1 << 19, 1}, false}, {"beyond the memory", Segment{InOurs, 1 << 40, 1}, false},
		{"overflow", Segment{InOurs, 8, 1<<64 - 8}, false},
	} {
		if _, err := x.Answered(row.s); (err == nil) != row.ok {
			t.Errorf("%s: %v, want ok %v", row.name, err, row.ok)
		}
	}
	if x.FreeAnswered(b) || !x.FreeAnswered(a) || x.FreeAnswered(a) {
		t.Error("the process gives back what it has, and nothing else")
	}
	x.Free(b)
	if n := x.InUse(); n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
}

func TestCancel(t *testing.T) {
	c := open(t)
	c.Cancel(5<<16 | 3)
	for _, row := range []struct {
		key  uint64
		want bool
	}{{5<<16 | 3, true}, {6<<16 | 3, false}, {5<<16 | 4, false}, {5<<16 | Slots, false}} {
		if got := c.Cancelled(row.key); got != row.want {
			t.Errorf("key %x: %v", row.key, got)
		}
	}
	c.Cancel(1<<16 | (MaxSlot - 1)) // has no word
}

// sample is a body with everything that bodies have.
func sample() *Encoder {
	e := &Encoder{}
	e.U64(3)
	e.U8(0)
	e.U32(2)
	e.U8(1)
	e.U8(0)
	e.String("")
	e.String(`{"a":1}`)
	e.U16(2)
	e.TensorInline(&infer.Tensor{Name: "OUT", Datatype: infer.FP32, Shape: []int64{1, 2}, Data: []byte{0, 0, 128,
		63, 0, 0, 0, 64}})
	e.Tensor(&infer.Tensor{Name: "BIG", Datatype: infer.Uint8, Shape: []int64{100000}}, Segment{InOurs, 4096, 100000})
	e.U8(2)
	return e
}

func TestCodec(t *testing.T) {
	d := NewDecoder(sample().Body(), nil)
	if events, ending, n, status := d.U64(), d.U8(), d.U32(), d.U8(); events != 3 || ending != 0 || n != 2 ||
		status != 1 {
		t.Fatalf("got %d, %d, %d, %d", events, ending, n, status)
	}
	var r Response
	d.Response(&r)
	if d.Err() != nil || r.Params != `{"a":1}` || len(r.Outputs) != 2 {
		t.Fatalf("%+v, %v", r, d.Err())
	}
	if o := r.Outputs[0]; o.Name != "OUT" || o.Datatype != infer.FP32 || fmt.Sprint(o.Shape) != "[1 2]" ||
		len(o.Data) != 8 || o.Data[2] != 128 {
		t.Errorf("the first output is %+v", o)
	}
	if o := r.Outputs[1]; o.Data != nil || o.Segment != (Segment{InOurs, 4096, 100000}) {
		t.Errorf("the second output is %+v", o)
	}
}

// Whatever a process writes, decoding it ends with what fits into the body, or with ErrCorrupt.
func FuzzResponse(f *testing.F) {
	f.Add(sample().Body()[14:])
	f.Add([]byte{0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, body []byte) {
		var r Response
		d := NewDecoder(body, nil)
		d.Response(&r)
		if d.Err() != nil {
			if !errors.Is(d.Err(), ErrCorrupt) {
				t.Fatal(d.Err())
			}
			return
		}
		for _, o := range r.Outputs {
			if len(o.Shape) > infer.MaxRank || len(o.Data) > len(body) {
				t.Fatalf("output %+v of a body of %d bytes", o, len(body))
			}
		}
	})
}

// Whatever stands in a ring, reading it ends.
func FuzzRing(f *testing.F) {
	f.Add([]byte{24, 0, 0, 0, 36, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}, uint8(1))
	f.Add([]byte{40, 0, 0, 0, 36, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}, uint8(2))
	f.Fuzz(func(t *testing.T, bytes []byte, frames uint8) {
		c := open(t)
		copy(c.ring(Results), bytes)
		if err := add(c.events[Results], endMark+uint64(frames)); err != nil {
			t.Fatal(err)
		}
		r := c.Reader(Results)
		for range int(frames) + 1 {
			if _, err := r.NextHere(); err != nil {
				return
			}
		}
		t.Error("more frames than were announced")
	})
}
