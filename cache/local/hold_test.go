package local

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/infer"
)

// numbered is a request of its own for each number.
func numbered(i int) *infer.Request {
	return cachetest.Request(binary.LittleEndian.AppendUint64(nil, uint64(i))...)
}

// filled is a cache of one shard with so many entries, all of which were asked for again.
func filled(tb testing.TB, entries int) (*Cache, *cachetest.Rig, *cache.Subject) {
	tb.Helper()
	r, s := &cachetest.Rig{Keys: cache.NewKeys()}, cachetest.Subject("m", "1", 1)
	q := r.Keys.Query(s, numbered(0))
	size := cache.NewEntry(q, cachetest.Response(0), 1, 0).Size()
	q.Done()
	c := New(Config{Size: size * int64(entries)})
	r.Level = c
	for i := range entries {
		r.Insert(s, numbered(i), cachetest.Response(0))
		r.Lookup(tb.Context(), s, numbered(i))
	}
	if f := c.Figures()[0]; len(c.shards) != 1 || f.Entries != int64(entries) {
		tb.Fatalf("%d shards, %+v", len(c.shards), f)
	}
	return c, r, s
}

// BenchmarkLongestHold is the longest time for which a shard is held by what walks over all of
// its 20000 entries, in the median of the walks: on one processor another goroutine has its
// turns between the holds.
func BenchmarkLongestHold(b *testing.B) {
	const entries = 20000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // its work is not what is measured
	insert := func(c *Cache, q *cache.Query, e *cache.Entry) { c.Insert(q, e) }
	for name, how := range map[string]struct {
		size int64
		walk func(c *Cache, q *cache.Query, e *cache.Entry)
	}{
		"evict one, all visited": {1, insert},
		"evict for a large one":  {9 << 20, insert},
		"purge": {1, func(c *Cache, _ *cache.Query, _ *cache.Entry) {
			_, _ = c.Purge(b.Context(), cache.Selector{}) // it has no errors
		}},
	} {
		b.Run(name, func(b *testing.B) {
			var longest []time.Duration
			for b.Loop() {
				b.StopTimer()
				runtime.GC()
				c, r, s := filled(b, entries)
				q := r.Keys.Query(s, numbered(entries))
				e := cache.NewEntry(q, cachetest.Response(make([]byte, how.size)...), 1, 0)
				var over atomic.Bool
				var wg sync.WaitGroup
				asking := make(chan struct{})
				wg.Go(func() { longest = append(longest, longestGap(asking, &over)) })
				<-asking
				runtime.Gosched()
				b.StartTimer()
				how.walk(c, q, e)
				over.Store(true)
				wg.Wait()
			}
			slices.Sort(longest)
			b.ReportMetric(float64(longest[len(longest)/2])/1e3, "held-us")
		})
	}
}

// longestGap is the longest time in which it had no turn on the one processor that there is.
func longestGap(asking chan<- struct{}, over *atomic.Bool) (longest time.Duration) {
	close(asking)
	runtime.Gosched()
	for last := time.Now(); ; runtime.Gosched() {
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
		if over.Load() {
			return longest
		}
	}
}

// A walk over a whole shard lets others in on its way: they come and go while it is under
// way, and what it goes on with is still right.
func TestLongWalksLetOthersIn(t *testing.T) {
	const entries = 2000
	for name, walk := range map[string]func(c *Cache, r *cachetest.Rig, s *cache.Subject){
		"evict": func(c *Cache, r *cachetest.Rig, s *cache.Subject) {
			r.Insert(s, numbered(entries), cachetest.Response(make([]byte, c.cfg.Size*9/10)...))
		},
		"purge": func(c *Cache, _ *cachetest.Rig, _ *cache.Subject) {
			_, _ = c.Purge(t.Context(), cache.Selector{Load: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			within := 0
			for range 8 {
				c, r, s := filled(t, entries)
				within += others(t, c, r, s, func() { walk(c, r, s) })
				checkBooks(t, c)
			}
			if within == 0 {
				t.Error("nobody was let in within a walk")
			}
		})
	}
}

// others removes, visits and adds entries while a walk goes on, and counts how often it saw
// one half done.
func others(t *testing.T, c *Cache, r *cachetest.Rig, s *cache.Subject, walk func()) (within int) {
	entries := int(c.Figures()[0].Entries)
	sh := &c.shards[0]
	var wg sync.WaitGroup
	var over atomic.Bool
	wg.Go(func() {
		for i := 0; !over.Load(); i++ {
			sh.mu.Lock()
			if n := len(sh.nodes); n > entries/5 && n < entries-perHold {
				within++
			}
			if sh.next != nil {
				sh.remove(sh.next) // where a purge goes on
			} else if sh.hand != nil {
				sh.remove(sh.hand)
			}
			sh.mu.Unlock()
			other := cachetest.Subject("m", "1", 2)
			r.Insert(other, numbered(i%100), cachetest.Response(1))
			q := r.Keys.Query(s, numbered(i%entries))
			c.Lookup(t.Context(), q)
			q.Done()
		}
	})
	walk()
	over.Store(true)
	wg.Wait()
	return within
}

func checkBooks(t *testing.T, c *Cache) {
	t.Helper()
	sh := &c.shards[0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var bytes int64
	nodes := 0
	for n := sh.head; n != nil; n = n.next {
		bytes += n.entry.Size()
		nodes++
		if sh.nodes[n.key] != n {
			t.Fatal("a node that is not in the map")
		}
	}
	if bytes != sh.bytes || nodes != len(sh.nodes) || bytes > sh.room {
		t.Fatalf("%d bytes in %d nodes, the books say %d in %d of %d", bytes, nodes, sh.bytes, len(sh.nodes), sh.room)
	}
}
