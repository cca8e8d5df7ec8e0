package auth

import (
	"crypto/sha256"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// generations is a bounded memory: two generations of at most half the bound each, so
// that what is asked for stays and what is not leaves.
type generations[K comparable, V any] struct {
	half int

	mu    sync.RWMutex
	young map[K]V // mu
	old   map[K]V // mu
}

func newGenerations[K comparable, V any](bound int) *generations[K, V] {
	return &generations[K, V]{half: max(bound/2, 1), young: map[K]V{}}
}

// get allocates nothing.
func (g *generations[K, V]) get(key K) (V, bool) {
	g.mu.RLock()
	v, ok := g.young[key]
	aged := false
	if !ok {
		v, aged = g.old[key]
	}
	g.mu.RUnlock()
	if aged {
		g.put(key, v)
	}
	return v, ok || aged
}

func (g *generations[K, V]) put(key K, v V) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.young[key]; !ok && len(g.young) >= g.half {
		g.old, g.young = g.young, make(map[K]V, g.half)
	}
	g.young[key] = v
}

func (g *generations[K, V]) len() int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return len(g.young) + len(g.old)
}

// proven is a credential that was checked.
type proven struct {
	principal *infer.Principal
	proxy     bool   // of a certificate: its holder's word on others is taken
	until     int64  // Unix seconds at which it is checked again
	keys      uint64 // the state of the keys then
}

// remembered are credentials that were checked, by their digests.
type remembered struct {
	*generations[[sha256.Size]byte, proven]
}

func newRemembered(bound int) remembered {
	return remembered{newGenerations[[sha256.Size]byte, proven](bound)}
}

// find gives what was proved and holds at a time, with these keys.
func (r remembered) find(digest *[sha256.Size]byte, now int64, keys uint64) (proven, bool) {
	p, ok := r.get(*digest)
	if !ok || now >= p.until || p.keys != keys {
		return proven{}, false
	}
	return p, true
}
