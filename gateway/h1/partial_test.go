package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// bringer answers /light/N with N bytes, in three pieces, from goroutines of its own, and
// counts what was served and what was written. Its memory is overwritten once an answer was
// written, so that what is still on its way then comes out wrong.
type bringer struct {
	t               *testing.T
	work            chan *Answer
	served, written atomic.Int64
}

func (b *bringer) Light(*Request) bool { return true }

func (b *bringer) Serve(_ context.Context, r *Request, a *Answer) bool {
	b.served.Add(1)
	n, err := strconv.Atoi(r.Path[strings.LastIndexByte(r.Path, '/')+1:])
	if err != nil {
		b.t.Error(err)
	}
	body := pattern(n)
	a.Owner, a.Status, a.Length = body, 200, int64(n)
	a.Chunks = append(a.Chunks, body[:n/3], body[n/3:n/2], body[n/2:])
	b.work <- a
	return true
}

func (b *bringer) Written(a *Answer) {
	b.written.Add(1)
	body, ok := a.Owner.([]byte)
	if !ok {
		b.t.Error("an answer was written twice")
		return
	}
	clear(body)
	a.Owner = nil
}

func (b *bringer) run() {
	for a := range b.work {
		infer.Flush(a.Done())
	}
}

func pattern(n int) []byte { return bytes.Repeat([]byte("0123456789abcde\n"), n/16+1)[:n] }

// TestPartlyWritten has clients that reset, close, close their half or send the next request
// while a large answer stands half written: every request that was begun is let go of once, who
// reads gets every byte, and no connection stays.
func TestPartlyWritten(t *testing.T) {
	b := &bringer{t: t, work: make(chan *Answer, 64)}
	var bring sync.WaitGroup
	for range 2 {
		bring.Go(b.run)
	}
	s := New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, BodyTimeout: time.Minute, MinRate: 1 << 10}, b, slog.New(slog.DiscardHandler))
	s.few = 0
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 128<<10) }) // else all is taken at once
	}}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	clients := 24
	if testing.Short() {
		clients = 6
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			for range 6 {
				if err := roughly(rnd, l.Addr().String()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	poll(t, "connections that have ended", func() bool { return len(s.conns.All()) == 0 })
	if served, written := b.served.Load(), b.written.Load(); served != written || served == 0 {
		t.Errorf("%d requests were served, %d let go of", served, written)
	}
	s.Close()
	close(b.work)
	bring.Wait()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// roughly is a client that is well behaved until its last request.
func roughly(rnd *rand.Rand, addr string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	c, ok := nc.(*net.TCPConn)
	if !ok {
		return errors.New("no TCP connection")
	}
	if err := errors.Join(c.SetReadBuffer(128<<10), c.SetDeadline(time.Now().Add(20*time.Second))); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 4<<10)
	sizes := []int{0, 100, 20 << 10, 60 << 10, 100 << 10, 700 << 10, 2 << 20}
	for range rnd.IntN(3) { // it may rest with the loop then
		if err := whole(c, r, sizes[rnd.IntN(3)], 1); err != nil {
			return err
		}
	}
	n := sizes[3+rnd.IntN(4)]
	switch rnd.IntN(5) {
	case 0: // reads all of it, and asks again behind it
		return whole(c, r, n, 1+rnd.IntN(3))
	case 1: // the next requests come while it is written
		if _, err := fmt.Fprintf(c, "GET /light/%d HTTP/1.1\r\nHost: a\r\n\r\n", n); err != nil {
			return err
		}
		if _, err := r.Peek(1 + rnd.IntN(4000)); err != nil {
			return err
		}
		_, err := io.WriteString(c, "GET /light/100 HTTP/1.1\r\nHost: a\r\n\r\nGET /light/70000 HTTP/1.1\r\nHo")
		if err == nil {
			err = hearOf(r, n)
		}
		if err == nil {
			_, err = io.WriteString(c, "st: a\r\n\r\n")
		}
		return errors.Join(err, hearOf(r, 100), hearOf(r, 70000))
	}
	if _, err := fmt.Fprintf(c, "GET /light/%d HTTP/1.1\r\nHost: a\r\n\r\n", n); err != nil {
		return err
	}
	if rnd.IntN(4) > 0 {
		if _, err := io.CopyN(io.Discard, r, int64(1+rnd.IntN(n))); err != nil {
			return err
		}
	}
	switch rnd.IntN(3) {
	case 0:
		return c.SetLinger(0) // a reset
	case 1: // what it has not read resets it as well
		return nil
	}
	// it has left, as one that closes its half has, but may still read
	if err := c.CloseWrite(); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, r) // may be cut
	return nil
}

// whole sends n requests at once and reads their answers.
func whole(c net.Conn, r *bufio.Reader, size, n int) error {
	if _, err := io.WriteString(c, strings.Repeat(fmt.Sprintf("GET /light/%d HTTP/1.1\r\nHost: a\r\n\r\n", size), n)); err != nil {
		return err
	}
	for range n {
		if err := hearOf(r, size); err != nil {
			return err
		}
	}
	return nil
}

// hearOf reads an answer of so many bytes.
func hearOf(r *bufio.Reader, size int) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return fmt.Errorf("an answer of %d bytes: %w", size, err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, pattern(size)) {
		return fmt.Errorf("an answer of %d bytes has %d, or others: %w", size, len(got), err)
	}
	return nil
}
