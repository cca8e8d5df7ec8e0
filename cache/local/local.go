package local

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Config is --cache-config local,….
type Config struct {
	Size int64         // bytes of all entries with their keys and overhead; > 0
	TTL  time.Duration // of models that set none; ≤ 0: no end
	Now  func() int64  // infer.Now; for tests
}

const (
	maxShards = 64
	// perShard is the least room of a shard: an entry larger than its shard is not kept.
	perShard = 16 << 20
)

// Cache is a cache.Level.
type Cache struct {
	cfg    Config
	shared bool // the clock is that of queries
	shards []shard
	mask   uint32
}

var _ cache.Level = (*Cache)(nil)

type shard struct {
	mu    sync.Mutex
	room  int64 // bytes at most
	bytes int64
	nodes map[cache.Key]*node
	// The queue: new ones come to head, hand goes from tail to head.
	head, tail, hand *node

	lookups, hits, evictions uint64
	looking, inserting       int64 // nanoseconds
	_                        [64]byte
}

type node struct {
	key        cache.Key
	entry      *cache.Entry
	expires    int64 // 0: never
	visited    bool
	prev, next *node // towards head, towards tail
}

// New makes an empty cache.
func New(cfg Config) *Cache {
	shared := cfg.Now == nil
	if shared {
		cfg.Now = infer.Now
	}
	n := 1
	for n < maxShards && cfg.Size/int64(2*n) >= perShard {
		n *= 2
	}
	c := &Cache{cfg: cfg, shared: shared, shards: make([]shard, n), mask: uint32(n - 1)}
	for i := range c.shards {
		c.shards[i].room = cfg.Size / int64(n)
		c.shards[i].nodes = map[cache.Key]*node{}
	}
	return c
}

func (c *Cache) shard(k *cache.Key) *shard {
	return &c.shards[uint32(k.Spread())&c.mask]
}

// Quick is cache.Quick's: a lookup is in memory.
func (c *Cache) Quick() bool { return true }

// Lookup is cache.Level. Its time counts from the query's Start, with the making of the
// key.
func (c *Cache) Lookup(_ context.Context, q *cache.Query) *cache.Entry {
	now := q.Start
	if now == 0 || !c.shared {
		now = c.cfg.Now()
	}
	s := c.shard(&q.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookups++
	n := s.nodes[q.Key]
	if n != nil && n.expires != 0 && n.expires <= now {
		s.remove(n)
		n = nil
	}
	end := c.cfg.Now()
	s.looking += end - now
	if c.shared {
		q.End = end
	}
	if n == nil {
		return nil
	}
	s.hits++
	n.visited = true
	return n.entry
}

// Insert is cache.Level. An entry under the key is replaced.
func (c *Cache) Insert(q *cache.Query, e *cache.Entry) {
	now := c.cfg.Now()
	n := &node{key: q.Key, entry: e, expires: e.Expires}
	if q.Subject.TTL == 0 && c.cfg.TTL > 0 && (n.expires == 0 || n.expires > now+int64(c.cfg.TTL)) {
		n.expires = now + int64(c.cfg.TTL)
	}
	s := c.shard(&q.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.nodes[n.key]; old != nil {
		s.remove(old)
	}
	if e.Size() <= s.room {
		for s.bytes+e.Size() > s.room {
			s.evict(now)
		}
		s.add(n)
	}
	s.inserting += c.cfg.Now() - now
}

func (s *shard) add(n *node) {
	s.nodes[n.key] = n
	s.bytes += n.entry.Size()
	n.next = s.head
	if s.head != nil {
		s.head.prev = n
	} else {
		s.tail = n
	}
	s.head = n
}

func (s *shard) remove(n *node) {
	delete(s.nodes, n.key)
	s.bytes -= n.entry.Size()
	if s.hand == n {
		s.hand = n.prev
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		s.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		s.tail = n.prev
	}
}

// evict removes the first that was not visited since the hand last came by, or has
// expired; the shard is not empty.
func (s *shard) evict(now int64) {
	n := s.hand
	for {
		if n == nil {
			n = s.tail
		}
		if !n.visited || n.expires != 0 && n.expires <= now {
			break
		}
		n.visited = false
		n = n.prev
	}
	s.hand = n
	s.remove(n)
	s.evictions++
}

// Purge is cache.Level.
func (c *Cache) Purge(_ context.Context, sel cache.Selector) (int64, error) {
	var removed int64
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for n := s.head; n != nil; {
			next := n.next
			if sel.Matches(n.entry) {
				s.remove(n)
				removed++
			}
			n = next
		}
		s.mu.Unlock()
	}
	return removed, nil
}

// Figures is cache.Level.
func (c *Cache) Figures() []cache.Figures {
	f := cache.Figures{Level: "local", Size: c.cfg.Size}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		f.Entries += int64(len(s.nodes))
		f.Bytes += s.bytes
		f.Lookups += s.lookups
		f.Hits += s.hits
		f.Evictions += s.evictions
		f.Lookup += time.Duration(s.looking)
		f.Insertion += time.Duration(s.inserting)
		s.mu.Unlock()
	}
	return []cache.Figures{f}
}

// Close is cache.Level.
func (c *Cache) Close(context.Context) error { return nil }
