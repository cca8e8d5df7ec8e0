package auth

import (
	"crypto/sha256"
	"sync"

	"github.com/sluice-serve/sluice/infer"
)

// proven is a credential that was checked.
type proven struct {
	principal *infer.Principal
	until     int64 // Unix seconds at which it is checked again
	keys      uint64
}

// remembered are credentials that were checked, by their digests: two generations of at
// most half the bound each, so that what is asked for stays and what is not leaves.
type remembered struct {
	half int

	mu    sync.RWMutex
	young map[[sha256.Size]byte]proven // mu
	old   map[[sha256.Size]byte]proven // mu
}

func newRemembered(bound int) *remembered {
	return &remembered{half: max(bound/2, 1), young: map[[sha256.Size]byte]proven{}}
}

// get finds what was proved at a time, with these keys. It allocates nothing.
func (r *remembered) get(digest *[sha256.Size]byte, now int64, keys uint64) *infer.Principal {
	r.mu.RLock()
	p, ok := r.young[*digest]
	aged := false
	if !ok {
		p, aged = r.old[*digest]
	}
	r.mu.RUnlock()
	if !ok && !aged || now >= p.until || p.keys != keys {
		return nil
	}
	if aged {
		r.put(digest, p)
	}
	return p.principal
}

func (r *remembered) put(digest *[sha256.Size]byte, p proven) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.young) >= r.half {
		if _, ok := r.young[*digest]; !ok {
			r.old, r.young = r.young, make(map[[sha256.Size]byte]proven, r.half)
		}
	}
	r.young[*digest] = p
}

func (r *remembered) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.young) + len(r.old)
}
