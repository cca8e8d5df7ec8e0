package h2

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/gateway/loop/looptest"
	"github.com/sluice-serve/sluice/infer"
)

// lender is a Method that answers with a large part of memory that it lends, and counts how
// often its calls are told and their memory comes back.
type lender struct {
	memory  *heap
	started atomic.Int64
	sent    atomic.Int64
	freed   atomic.Int64
	wrong   atomic.Int64 // told or freed twice, or told before
}

type lentCall struct {
	m     *lender
	st    *Stream
	sent  atomic.Bool
	freed atomic.Bool
}

func (m *lender) Begin(ctx context.Context, _ Call) (Call, error) {
	st, _ := FromContext(ctx)
	return &lentCall{m: m, st: st}, nil
}

func (c *lentCall) Memory(n int64, _ []byte) (*infer.Buffer, error) { return c.m.memory.Body(n) }

func (c *lentCall) Quick() bool { return true }

func (c *lentCall) Start(memory *infer.Buffer, message []byte) func() {
	memory.Release()
	c.m.started.Add(1)
	n := 0
	fmt.Sscan(string(message), &n)
	part := &lentBytes{mem.SliceBuffer(strings.Repeat(string('a'+rune(n%26)), n)), c}
	answer := func() { infer.Flush(c.st.Answer(mem.BufferSlice{part}, nil)) }
	if c.st.id%4 == 1 {
		go answer()
	} else {
		answer()
	}
	return nil
}

func (c *lentCall) Sent() bool {
	if c.sent.Swap(true) || !c.freed.Load() {
		c.m.wrong.Add(1)
	}
	c.m.sent.Add(1)
	return c.st.id%8 < 4
}

func (c *lentCall) Abort(error) {}

type lentBytes struct {
	mem.SliceBuffer
	c *lentCall
}

func (p *lentBytes) Free() {
	if p.c.freed.Swap(true) {
		p.c.m.wrong.Add(1)
	}
	for i := range p.SliceBuffer { // as who has the memory next
		p.SliceBuffer[i] = '!'
	}
	p.c.m.freed.Add(1)
}

// Large answers that are written where they are made, to sockets that take a part of them, while
// clients reset calls, change windows, stop reading, hang up, or the server drains: each call is
// told once, its memory is given back once and before, and what clients read is their own.
func TestLeisureAtRandom(t *testing.T) {
	l := looptest.Start(t)
	f := start(t, func(c *Config) { c.Loops, c.MaxPingStrikes = []*loop.Loop{l}, 0 })
	m := &lender{memory: f.memory}
	f.s.methods["/test.Echo/Lend"] = &method{name: "/test.Echo/Lend", hot: m} // nobody has called yet
	seed := rand.Uint64()
	var all sync.WaitGroup
	for i := range uint64(4) {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, i))
			for range 10 {
				if err := lendAtRandom(t, f, rnd); err != "" {
					t.Errorf("seed %d: %s", seed, err)
					return
				}
			}
		})
	}
	all.Wait()
	poll(t, "all are told", func() bool {
		return m.sent.Load() == m.started.Load() && m.freed.Load() == m.started.Load()
	})
	poll(t, "no connection is left", func() bool { return len(f.s.conns.All()) == 0 })
	if m.started.Load() < 50 || m.wrong.Load() > 0 {
		t.Errorf("seed %d: of %d calls %d were told or freed twice, or told early", seed, m.started.Load(), m.wrong.Load())
	}
}

// lendAtRandom is one connection's life; it says what it has read that was wrong.
func lendAtRandom(t *testing.T, f *fixture, rnd *rand.Rand) string {
	nc, err := net.Dial("tcp", f.addr)
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	if rnd.IntN(2) == 0 {
		_ = nc.(*net.TCPConn).SetReadBuffer(64 << 10)
	}
	c := newRaw(t, nc)
	window := uint32(1) << (14 + rnd.IntN(12))
	// Whatever is written may fail: it may be drained before it is greeted.
	_, _ = io.WriteString(nc, http2.ClientPreface)
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = c.fr.WriteSettingsAck()
	_ = c.fr.WriteWindowUpdate(0, 1<<30)
	sizes := map[uint32]int{}
	id := uint32(1)
	for range 1 + rnd.IntN(12) {
		switch rnd.IntN(8) {
		case 0:
			_ = c.fr.WriteRSTStream(id-2*uint32(rnd.IntN(int(id+1)/2))%id|1, http2.ErrCodeCancel)
		case 1:
			_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(1) << (10 + rnd.IntN(16))})
		case 2:
			if !c.echoed() {
				return ""
			}
		case 3:
			for _, cn := range f.s.conns.All() {
				if rnd.IntN(8) == 0 {
					cn.drain()
				}
			}
		default:
			sizes[id] = 1 + rnd.IntN(1<<uint(10+rnd.IntN(11)))
			block := c.block(request(":path", "/test.Echo/Lend")...)
			_ = c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true})
			_ = c.fr.WriteData(id, true, message(fmt.Sprint(sizes[id])))
			id += 2
		}
	}
	if rnd.IntN(3) == 0 {
		return "" // it hangs up, what it has not read is lost
	}
	_ = c.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 26})
	for range 8 {
		if !c.echoed() {
			break
		}
	}
	for at, a := range c.seen {
		if len(a.data) < 5 {
			continue
		}
		want := string('a' + rune(sizes[at]%26))
		if body := string(a.data[5:]); strings.Trim(body, want) != "" || len(body) > sizes[at] {
			return fmt.Sprintf("stream %d: wrong bytes", at)
		}
		if a.ended && a.fields["grpc-status"] == "0" && len(a.data) != 5+sizes[at] {
			return fmt.Sprintf("stream %d: %d bytes, want %d", at, len(a.data)-5, sizes[at])
		}
	}
	return ""
}

// echoed reads until a ping is answered; false: the connection is over.
func (c *rawConn) echoed() bool {
	_ = c.fr.WritePing(false, [8]byte{9})
	for {
		f, err := c.next()
		if err != nil {
			return false
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() && p.Data == [8]byte{9} {
			return true
		} else if ok {
			_ = c.fr.WritePing(true, p.Data)
		}
	}
}
