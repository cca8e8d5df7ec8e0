package local

import (
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
)

// An eviction for a large entry ends though many others fill what it frees between its holds.
func TestEvictionsAreNotOutrun(t *testing.T) {
	const entries, fillers = 4000, 400
	c, r, s := filled(t, entries)
	var over atomic.Bool
	var wg sync.WaitGroup
	var ready sync.WaitGroup
	var inserted atomic.Int64
	for w := range fillers {
		ready.Add(1)
		wg.Go(func() {
			other := cachetest.Subject("m", "1", 2)
			q := r.Keys.Query(other, numbered(w))
			defer q.Done()
			e := cache.NewEntry(q, cachetest.Response(0), 1, 0)
			ready.Done()
			for i := uint64(0); !over.Load(); i++ {
				own := cache.Query{Subject: other, Key: q.Key}
				binary.LittleEndian.PutUint64(own.Key[32:], i) // another one each time
				c.Insert(&own, e)
				inserted.Add(1)
			}
		})
	}
	ready.Wait()
	q := r.Keys.Query(s, numbered(entries))
	e := cache.NewEntry(q, cachetest.Response(make([]byte, c.cfg.Size*9/10)...), 1, 0)
	begin, before := time.Now(), inserted.Load()
	c.Insert(q, e)
	took, meanwhile := time.Since(begin), inserted.Load()-before
	over.Store(true)
	wg.Wait()
	q.Done()
	checkBooks(t, c)
	t.Logf("%v, while %d others were inserted", took, meanwhile)
	if meanwhile > 200_000 { // before evictions held on, 350000 with the race detector, 1.7 million without
		t.Errorf("%d others were inserted meanwhile", meanwhile)
	}
}

// What is being inserted when a purge begins is not kept, however long room is made for it.
func TestInsertsDontSurvivePurges(t *testing.T) {
	const entries = 2000
	within := 0
	for range 20 {
		c, r, s := filled(t, entries)
		sh := &c.shards[0]
		var wg sync.WaitGroup
		wg.Go(func() { r.Insert(s, numbered(entries), cachetest.Response(make([]byte, c.cfg.Size*9/10)...)) })
		for begun := false; !begun; runtime.Gosched() {
			sh.mu.Lock()
			begun = len(sh.nodes) < entries
			if begun && len(sh.nodes) > entries/5 {
				within++
			}
			sh.mu.Unlock()
		}
		if _, err := c.Purge(t.Context(), cache.Selector{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if f := c.Figures()[0]; f.Entries != 0 {
			t.Fatalf("%d entries after a purge", f.Entries)
		}
		checkBooks(t, c)
	}
	if within == 0 {
		t.Error("no purge began within an insertion")
	}
}
