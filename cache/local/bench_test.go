package local

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/cachetest"
	"github.com/sluice-serve/sluice/infer"
)

// queries are of n requests, with keys that are spread.
func queries(n int) []*cache.Query {
	keys, s := cache.NewKeys(), cachetest.Subject("m", "1", 1)
	all := make([]*cache.Query, n)
	for i := range all {
		all[i] = keys.Query(s, cachetest.Request(binary.LittleEndian.AppendUint64(nil, uint64(i))...))
	}
	return all
}

// BenchmarkLookup is the map alone, without making the key, on all cores.
func BenchmarkLookup(b *testing.B) {
	c := New(Config{Size: 1 << 30})
	all := queries(1000)
	for _, q := range all {
		c.Insert(q, cache.NewEntry(q, cachetest.Response(make([]byte, 512)...), infer.Now(), 0))
	}
	var n atomic.Int64
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for i := int(n.Add(13)); p.Next(); i++ {
			if c.Lookup(b.Context(), all[i%len(all)]) == nil {
				b.Error("missing")
			}
		}
	})
}

// BenchmarkInsert evicts for each new entry.
func BenchmarkInsert(b *testing.B) {
	c := New(Config{Size: 1 << 20})
	all := queries(10000)
	e := cache.NewEntry(all[0], cachetest.Response(make([]byte, 512)...), infer.Now(), 0)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		c.Insert(all[i%len(all)], e)
	}
}
