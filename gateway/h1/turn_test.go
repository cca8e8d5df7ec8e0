package h1

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// keeper is a handler whose answers wait until they are let go.
type keeper struct {
	begun chan kept
	plain chan string // paths of requests that were not served inline
}

type kept struct {
	ctx context.Context
	a   *Answer
}

func newKeeper() *keeper { return &keeper{begun: make(chan kept, 64), plain: make(chan string, 64)} }

func (k *keeper) Light(r *Request) bool { return strings.HasPrefix(r.Path, "/light") }

func (k *keeper) Written(*Answer) {}

func (k *keeper) Serve(ctx context.Context, r *Request, a *Answer) (later bool) {
	if !r.Inline {
		k.plain <- r.Path
	}
	if strings.HasSuffix(r.Path, "/now") {
		say(a, 200, []byte(r.Path))
		return false
	}
	k.begun <- kept{ctx, a}
	return true
}

func (h kept) answer(body []byte) {
	say(h.a, 200, body)
	infer.Flush(h.a.Done())
}

func startKeeper(t *testing.T, h Handler) (addr string, s *Server) {
	t.Helper()
	s = New(Config{MaxHeaderBytes: 8 << 10, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, BodyTimeout: 10 * time.Second,
		MinRate: 1 << 10}, h, slog.New(slog.DiscardHandler))
	s.few, s.turnTime = 0, int64(time.Hour)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l, NewHandoff(l.Addr())) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return l.Addr().String(), s
}

func ask(t *testing.T, c net.Conn, path string) {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, r *bufio.Reader) []byte {
	t.Helper()
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func (s *Server) places() (n [3]int) {
	for _, c := range s.conns.All() {
		c.mu.Lock()
		n[c.place]++
		c.mu.Unlock()
	}
	return n
}

// waitParked waits until n connections rest without a goroutine.
func waitParked(t *testing.T, s *Server, n int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); s.places()[parked] != n; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("connections driven, parked, at their turn: %v, want %d parked", s.places(), n)
		}
	}
}

// Connections with light requests have no goroutine, neither while they rest nor while
// their requests run.
func TestParkedWithoutGoroutines(t *testing.T) {
	const n = 50
	k := newKeeper()
	addr, s := startKeeper(t, k)
	conns := make([]*bufio.Reader, n)
	var all []net.Conn
	for i := range conns {
		c := dial(t, addr)
		all, conns[i] = append(all, c), bufio.NewReader(c)
		ask(t, c, "/light/now")
		hear(t, conns[i])
	}
	for range n {
		<-k.plain // the first one of each connection
	}
	waitParked(t, s, n)
	before := runtime.NumGoroutine()
	for _, c := range all {
		ask(t, c, "/light/later")
	}
	for range n {
		h := <-k.begun
		h.answer([]byte("late"))
	}
	for _, r := range conns {
		if got := hear(t, r); string(got) != "late" {
			t.Errorf("answer %q", got)
		}
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
	waitParked(t, s, n)
	select {
	case p := <-k.plain:
		t.Errorf("%s took a goroutine", p)
	default:
	}
}

// What is not light takes a goroutine for itself, and then the connection rests again.
func TestParkedThenDriven(t *testing.T) {
	k := newKeeper()
	addr, s := startKeeper(t, k)
	c := dial(t, addr)
	r := bufio.NewReader(c)
	for range 5 {
		ask(t, c, "/light/now")
		hear(t, r)
		ask(t, c, "/heavy/now")
		if got := hear(t, r); string(got) != "/heavy/now" {
			t.Errorf("answer %q", got)
		}
		waitParked(t, s, 0+1)
	}
	for n := 0; n < 5; {
		if p := <-k.plain; p == "/heavy/now" {
			n++
		}
	}
}

// A parked connection whose client leaves ends the request that it has.
func TestParkedLeaves(t *testing.T) {
	k := newKeeper()
	addr, s := startKeeper(t, k)
	c := dial(t, addr)
	r := bufio.NewReader(c)
	ask(t, c, "/light/now")
	hear(t, r)
	waitParked(t, s, 1)
	ask(t, c, "/light/later")
	h := <-k.begun
	if h.ctx.Err() != nil {
		t.Fatal("the request has ended")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-h.ctx.Done()
	h.answer([]byte("in vain"))
	for end := time.Now().Add(10 * time.Second); len(s.conns.All()) > 0; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the connection stays")
		}
	}
}

// A server that stops answers what parked connections have, and then closes them; those
// that rest are closed.
func TestParkedShutdown(t *testing.T) {
	k := newKeeper()
	addr, s := startKeeper(t, k)
	var conns []net.Conn
	var readers []*bufio.Reader
	for range 2 {
		c := dial(t, addr)
		conns, readers = append(conns, c), append(readers, bufio.NewReader(c))
		ask(t, c, "/light/now")
		hear(t, readers[len(readers)-1])
	}
	waitParked(t, s, 2)
	ask(t, conns[0], "/light/later")
	h := <-k.begun
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		done <- s.Shutdown(ctx)
	}()
	if _, err := readers[1].ReadByte(); err != io.EOF {
		t.Errorf("the resting connection: %v", err)
	}
	h.answer([]byte("last"))
	if got := hear(t, readers[0]); string(got) != "last" {
		t.Errorf("answer %q", got)
	}
	if _, err := readers[0].ReadByte(); err != io.EOF {
		t.Errorf("the connection that was answered: %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An answer that a socket does not take at once comes whole from a parked connection too.
func TestParkedLargeAnswer(t *testing.T) {
	k := newKeeper()
	addr, s := startKeeper(t, k)
	c := dial(t, addr)
	r := bufio.NewReader(c)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	for range 3 {
		ask(t, c, "/light/now")
		hear(t, r)
		waitParked(t, s, 1)
		ask(t, c, "/light/later")
		h := <-k.begun
		h.answer(want)
		if got := hear(t, r); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, want %d", len(got), len(want))
		}
	}
}

// TestParkedAtRandom sends requests of all kinds, in pieces and in heaps, and wants each
// answered once and in order.
func TestParkedAtRandom(t *testing.T) {
	addr, e, _ := start(t, nil)
	const clients, each = 8, 300
	failed := make(chan error, clients)
	for i := range clients {
		go func() { failed <- randomClient(addr, uint64(i), each) }()
	}
	for range clients {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := e.served.Load(); n != clients*each {
		t.Errorf("%d requests were served, want %d", n, clients*each)
	}
}

// TestParkedInHaste answers from other goroutines while the client, which does not wait long,
// sends the next request: nothing is lost between who writes and who reads.
func TestParkedInHaste(t *testing.T) {
	addr, _, _ := start(t, nil)
	request := []byte("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n" + string(make([]byte, 100)))
	failed := make(chan error, 6)
	for i := range cap(failed) {
		go func() { failed <- hasty(addr, request, i%2+1) }()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// hasty has so many requests on their way at a time.
func hasty(addr string, request []byte, ahead int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	r := bufio.NewReader(c)
	for i := range 1500 {
		if _, err := c.Write(request); err != nil {
			return err
		}
		if i+1 < ahead {
			continue
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
	}
	return nil
}

func randomClient(addr string, seed uint64, n int) error {
	rng := rand.New(rand.NewPCG(seed, 5))
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for done := 0; done < n; {
		heap := min(1+rng.IntN(12)*rng.IntN(2), n-done)
		var out []byte
		var want [][]byte
		for i := range heap {
			body := bytes.Repeat([]byte{byte('a' + i)}, []int{0, 100, 5000, 40000}[min(rng.IntN(8), 3)])
			path := fmt.Sprintf("/p%d", done+i)
			if len(body) == 0 && rng.IntN(2) == 0 {
				out = fmt.Appendf(out, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
				want = append(want, said("GET", path, "", nil))
				continue
			}
			out = append(fmt.Appendf(out, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", path, len(body)), body...)
			want = append(want, said("POST", path, "", body))
		}
		go func() { // in pieces; a write that fails shows as an answer that does not come
			for len(out) > 0 {
				k := len(out)
				if rng.IntN(3) == 0 {
					k = 1 + rng.IntN(len(out))
				}
				if _, err := c.Write(out[:k]); err != nil {
					return
				}
				out = out[k:]
			}
		}()
		for i, w := range want {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				return fmt.Errorf("request %d: %w", done+i, err)
			}
			got, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Equal(got, w) {
				return fmt.Errorf("request %d: %d bytes, %v, want %d: %.40q", done+i, len(got), err, len(w), got)
			}
		}
		done += heap
	}
	return nil
}
