package local

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/infer"
)

func TestSuite(t *testing.T) {
	cachetest.Run(t, func(*testing.T) cache.Level { return New(Config{Size: 1 << 20}) })
}

func TestSuiteInShards(t *testing.T) {
	cachetest.Run(t, func(*testing.T) cache.Level { return New(Config{Size: 4 * perShard}) })
}

// Whatever comes, the bytes stay within the bound, count exactly what is there, and what
// is found is right.
func TestBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := New(Config{Size: 64 << 10})
	r := &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
	s := cachetest.Subject("m", "1", 1)
	hits := 0
	for range 20000 {
		b := byte(rng.IntN(120))
		req := cachetest.Request(b)
		if e := r.Lookup(t.Context(), s, req); e != nil {
			hits++
			if e.Outputs[0].Data[0] != b {
				t.Fatalf("asked for %d, got the answer %d", b, e.Outputs[0].Data[0])
			}
		} else {
			data := make([]byte, 1+rng.IntN(2000))
			data[0] = b
			r.Insert(s, req, cachetest.Response(data...))
		}
		if rng.IntN(2000) == 0 {
			if _, err := c.Purge(t.Context(), cache.Selector{Load: 1}); err != nil {
				t.Fatal(err)
			}
		}
		var bytes, nodes int64
		sh := &c.shards[0]
		for n := sh.head; n != nil; n = n.next {
			bytes += n.entry.Size()
			nodes++
		}
		f := c.Figures()[0]
		if f.Bytes > f.Size || f.Bytes != bytes || f.Entries != nodes || int64(len(sh.nodes)) != nodes {
			t.Fatalf("figures %+v, counted %d bytes in %d entries", f, bytes, nodes)
		}
	}
	if f := c.Figures()[0]; f.Evictions == 0 || hits < 1000 {
		t.Errorf("%d evictions, %d hits: nothing was tried", f.Evictions, hits)
	}
}

func TestTooLargeIsNotKept(t *testing.T) {
	c := New(Config{Size: 10 << 10})
	r := &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
	s := cachetest.Subject("m", "1", 1)
	r.Insert(s, cachetest.Request(1), cachetest.Response(1))
	r.Insert(s, cachetest.Request(2), cachetest.Response(make([]byte, 20<<10)...))
	if f := c.Figures()[0]; f.Entries != 1 || f.Evictions != 0 {
		t.Errorf("figures %+v: one that is too large must push nothing out", f)
	}
}

// What is asked for again stays; what was never asked for again goes first.
func TestEvictsWhatWasNotVisited(t *testing.T) {
	r := &cachetest.Rig{Keys: cache.NewKeys()}
	s := cachetest.Subject("m", "1", 1)
	q := r.Keys.Query(s, cachetest.Request(0))
	size := cache.NewEntry(q, cachetest.Response(0), 1, 0).Size()
	q.Done()
	r.Level = New(Config{Size: 4 * size})
	for i := range byte(4) {
		r.Insert(s, cachetest.Request(i), cachetest.Response(i))
	}
	r.Arrives(t, s, cachetest.Request(0))
	r.Arrives(t, s, cachetest.Request(2))
	r.Insert(s, cachetest.Request(4), cachetest.Response(4))
	r.Insert(s, cachetest.Request(5), cachetest.Response(5))
	for i, want := range []bool{true, false, true, false, true, true} {
		if got := r.Lookup(t.Context(), s, cachetest.Request(byte(i))) != nil; got != want {
			t.Errorf("request %d is there: %v, want %v", i, got, want)
		}
	}
}

func TestDefaultTTL(t *testing.T) {
	now := int64(1)
	c := New(Config{Size: 1 << 20, TTL: time.Minute, Now: func() int64 { return now }})
	r := &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
	byDefault, own, never := cachetest.Subject("a", "1", 1), cachetest.Subject("b", "1", 1), cachetest.Subject("c", "1", 1)
	own.TTL, never.TTL = time.Hour, -1
	for _, s := range []*cache.Subject{byDefault, own, never} {
		q := r.Keys.Query(s, cachetest.Request(1))
		c.Insert(q, cache.NewEntry(q, cachetest.Response(1), now, s.TTL))
		q.Done()
	}
	now += int64(time.Minute) + 1
	for s, want := range map[*cache.Subject]bool{byDefault: false, own: true, never: true} {
		if got := r.Lookup(t.Context(), s, cachetest.Request(1)) != nil; got != want {
			t.Errorf("%s after a minute: there %v, want %v", s.Model, got, want)
		}
	}
	if f := c.Figures()[0]; f.Entries != 2 {
		t.Errorf("%d entries: what has expired is freed when it is looked up", f.Entries)
	}
}

func TestParseConfig(t *testing.T) {
	for _, c := range []struct {
		settings map[string]string
		want     Config
		ok       bool
	}{
		{map[string]string{"size": "1048576"}, Config{Size: 1 << 20}, true},
		{map[string]string{"size": "5", "ttl": "1m"}, Config{Size: 5, TTL: time.Minute}, true},
		{map[string]string{"size": "5", "ttl": "1.5"}, Config{Size: 5, TTL: 1500 * time.Millisecond}, true},
		{map[string]string{}, Config{}, false}, {map[string]string{"size": "0"}, Config{}, false},
		{map[string]string{"size": "x"}, Config{}, false}, {map[string]string{"size": "1", "ttl": "-1"}, Config{}, false},
		{map[string]string{"size": "1", "ttl": "soon"}, Config{}, false},
	} {
		got, err := ParseConfig(c.settings)
		if (err == nil) != c.ok || err == nil && (got.Size != c.want.Size || got.TTL != c.want.TTL) || err != nil && infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%v: got %+v, %v, want %+v", c.settings, got, err, c.want)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	for _, n := range []int{2 << 10, 600 << 10} {
		b.Run(map[int]string{2 << 10: "2KiB", 600 << 10: "600KiB"}[n], func(b *testing.B) {
			c := New(Config{Size: 64 << 20})
			r := &cachetest.Rig{Level: c, Keys: cache.NewKeys()}
			s, req := cachetest.Subject("m", "1", 1), cachetest.Request(make([]byte, n)...)
			r.Insert(s, req, cachetest.Response(make([]byte, 512)...))
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if r.Lookup(b.Context(), s, req) == nil {
					b.Fatal("missing")
				}
			}
		})
	}
}
