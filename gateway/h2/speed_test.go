package h2

import (
	"encoding/binary"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

// looper calls again and again with the same bytes, which costs the client nothing.
type looper struct {
	nc     net.Conn
	call   []byte
	data   int // where the DATA frame begins
	stream uint32
	head   [9]byte
	body   []byte
}

func newLooper(t testing.TB, nc net.Conn, body string) *looper {
	c := newRaw(t, nc)
	c.write(http2.ClientPreface)
	c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
	c.must(c.fr.WriteWindowUpdate(0, 1<<30))
	c.call(1, body, "do", "now")
	if got := c.outcome(1); got != "0 "+body {
		t.Fatal(got)
	}
	l := &looper{nc: nc, stream: 1, body: make([]byte, 1<<16)}
	block := c.block(request("do", "now")...) // indexed, since the first call
	l.call = append(appendFrame(nil, len(block), frameHeaders, flagEndHeaders, 0), block...)
	l.data = len(l.call)
	m := message(body)
	l.call = append(appendFrame(l.call, len(m), frameData, flagEndStream, 0), m...)
	return l
}

func (l *looper) once() error {
	l.stream += 2
	binary.BigEndian.PutUint32(l.call[5:], l.stream)
	binary.BigEndian.PutUint32(l.call[l.data+5:], l.stream)
	if _, err := l.nc.Write(l.call); err != nil {
		return err
	}
	for {
		if _, err := io.ReadFull(l.nc, l.head[:]); err != nil {
			return err
		}
		h := parseHead(l.head[:])
		if _, err := io.ReadFull(l.nc, l.body[:h.length]); err != nil {
			return err
		}
		if h.kind == frameHeaders && h.has(flagEndStream) {
			return nil
		}
	}
}

// TestAllocations holds what a small unary call allocates, the method's own included:
// its record, two copies, and a slice of them.
func TestAllocations(t *testing.T) {
	f := start(t, nil)
	nc, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	l := newLooper(t, nc, "sixteen floats, that is 64 bytes")
	got := testing.AllocsPerRun(500, func() {
		if err := l.once(); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%.1f allocations for a call", got)
	if most := 10.0; got > most {
		t.Errorf("a call takes %.1f allocations, at most %.0f", got, most)
	}
}

func BenchmarkUnary(b *testing.B) {
	for _, body := range []int{64, 16000} {
		run := func(name string, nc net.Conn) {
			b.Run(name+"/"+itoa(body), func(b *testing.B) {
				l := newLooper(b, nc, string(make([]byte, body)))
				b.ReportAllocs()
				for b.Loop() {
					if err := l.once(); err != nil {
						b.Fatal(err)
					}
				}
			})
			_ = nc.Close()
		}
		f := start(b, nil)
		nc, err := net.Dial("tcp", f.addr)
		if err != nil {
			b.Fatal(err)
		}
		run("sluice", nc)
		lib := listenLibrary(b)
		if nc, err = net.Dial("tcp", lib); err != nil {
			b.Fatal(err)
		}
		run("library", nc)
	}
}
