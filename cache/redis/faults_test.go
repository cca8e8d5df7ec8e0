package redis

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/internal/redistest"
)

// budget is that of the fault tests. Slack is for the machine: tests run beside others.
const (
	budget = 5 * time.Millisecond
	slack  = 5 * time.Second  // what a busy machine may add
	socket = 30 * time.Second // what a lookup takes that ignores its budget
)

// load looks up and fills from eight goroutines for as long as it takes to ask n times,
// and gives the longest lookup.
func load(t *testing.T, r *cachetest.Rig, n int) (longest time.Duration) {
	t.Helper()
	sub := cachetest.Subject("m", "1", 1)
	var wg sync.WaitGroup
	var most atomic.Int64
	for g := range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				b := byte(g*31 + i)
				start := time.Now()
				e := r.Lookup(t.Context(), sub, cachetest.Request(b))
				took := time.Since(start)
				for m := most.Load(); int64(took) > m && !most.CompareAndSwap(m, int64(took)); m = most.Load() {
				}
				if e != nil && e.Outputs[0].Data[0] != b {
					t.Errorf("asked for %d, got the answer %d", b, e.Outputs[0].Data[0])
				}
				r.Insert(sub, cachetest.Request(b), cachetest.Response(b))
			}
		})
	}
	wg.Wait()
	return time.Duration(most.Load())
}

// quick holds a load against the budget: no lookup over it, and once the breaker is open
// nearly none that is asked at all.
func quick(t *testing.T, c *Cache, r *cachetest.Rig) {
	t.Helper()
	before := c.Figures()[0].Failures
	if longest := load(t, r, 2000); longest > budget+slack {
		t.Errorf("a lookup took %v, the budget is %v", longest, budget)
	}
	f := c.Figures()[0]
	if !f.Open {
		t.Errorf("the breaker is closed: %+v", f)
	}
	// A call for each goroutine may be under way when it opens, and one probe a second.
	if asked := f.Failures - before; asked > 100 {
		t.Errorf("%d of 2000 lookups and their fills asked and waited", asked)
	}
}

func withBudget(c *Config) { c.Budget = budget; c.SocketTimeout = socket }

func TestNobodyThere(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	c, r := rig(t, s.Port, withBudget)
	quick(t, c, r)
}

// A server that dies under load is not asked any more, and is asked again when it is back.
func TestKilledAndBack(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, withBudget)
	load(t, r, 400)
	s.Kill()
	quick(t, c, r)
	s.Run()
	r.Goes(t, cachetest.Subject("none", "1", 1), cachetest.Request(1))
	sub := cachetest.Subject("m", "1", 1)
	for end := time.Now().Add(time.Minute); ; wait(t, 20*time.Millisecond) {
		r.Insert(sub, cachetest.Request(1), cachetest.Response(1))
		if r.Lookup(t.Context(), sub, cachetest.Request(1)) != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("it is not asked again: %+v", c.Figures()[0])
		}
	}
	if f := c.Figures()[0]; f.Open {
		t.Errorf("the breaker stayed open: %+v", f)
	}
}

// A frozen server accepts connections and says nothing.
func TestFrozen(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, withBudget)
	load(t, r, 400)
	s.Signal(syscall.SIGSTOP)
	quick(t, c, r)
	s.Signal(syscall.SIGCONT)
	for end := time.Now().Add(time.Minute); c.Figures()[0].Open; wait(t, 20*time.Millisecond) {
		r.Lookup(t.Context(), cachetest.Subject("m", "1", 1), cachetest.Request(1))
		if time.Now().After(end) {
			t.Fatalf("the breaker stayed open: %+v", c.Figures()[0])
		}
	}
}

// proxy passes bytes on, each answer late.
func proxy(t *testing.T, port string, late time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	var over bool // what is accepted while the test ends would stay open
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if conns = append(conns, c); over {
			_ = c.Close()
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				_ = in.Close()
				continue
			}
			keep(in)
			keep(out)
			wg.Go(func() { _, _ = io.Copy(out, in) })
			wg.Go(func() {
				buf := make([]byte, 64<<10)
				for {
					n, err := out.Read(buf)
					if err != nil {
						return
					}
					wait(t, late)
					if _, err := in.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	_, p, _ := strings.Cut(l.Addr().String(), ":")
	return p
}

func TestSlow(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, proxy(t, s.Port, 50*time.Millisecond), withBudget)
	quick(t, c, r)
}

// Foreign data under all keys, under load: misses, then answers of our own.
func TestForeignUnderLoad(t *testing.T) {
	s := redistest.Start(t)
	c, r := rig(t, s.Port, nil)
	sub := cachetest.Subject("m", "1", 1)
	for b := range 256 {
		q := r.Keys.Query(sub, cachetest.Request(byte(b)))
		key, _ := q.Shared()
		if err := c.client.Set(t.Context(), c.key(q, &key), strings.Repeat("x", b), 0).Err(); err != nil {
			t.Fatal(err)
		}
		q.Done()
	}
	load(t, r, 800)
	for b := range 200 {
		r.Insert(sub, cachetest.Request(byte(b)), cachetest.Response(byte(b)))
		if e := r.Arrives(t, sub, cachetest.Request(byte(b))); e.Outputs[0].Data[0] != byte(b) {
			t.Errorf("asked for %d, got %d", b, e.Outputs[0].Data[0])
		}
	}
	if f := c.Figures()[0]; f.Open {
		t.Errorf("figures %+v", f)
	}
}

// Fills that nobody takes are bounded and dropped.
func TestFillsAreBounded(t *testing.T) {
	s := redistest.Start(t)
	s.Signal(syscall.SIGSTOP)
	c, r := rig(t, s.Port, func(c *Config) { c.SocketTimeout = 2 * time.Minute })
	sub := cachetest.Subject("m", "1", 1)
	start := time.Now()
	big := make([]byte, 1<<20)
	for i := range 200 {
		q := r.Keys.Query(sub, cachetest.Request(byte(i), byte(i>>8)))
		c.Insert(q, cache.NewEntry(q, cachetest.Response(big...), 1, 0))
		q.Done()
	}
	if room := c.room.Load(); room < 0 || maxFillBytes-room > maxFillBytes {
		t.Errorf("%d bytes of room", room)
	}
	if f := c.Figures()[0]; f.Dropped < 100 {
		t.Errorf("%d of 200 MiB dropped", f.Dropped)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("inserting took %v, as long as the server may be waited for", took)
	}
	s.Kill()
}
