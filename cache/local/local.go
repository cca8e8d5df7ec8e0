package local

import (
	"context"
	"runtime"
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
	// perHold is how many nodes are looked at while a shard's lock is held: some
	// microseconds. Evictions and purges that take more let others in between.
	perHold = 64
)

// Cache is a cache.Level.
type Cache struct {
	cfg    Config
	shared bool // the clock is that of queries
	shards []shard
	mask   uint32

	purging sync.Mutex // one purge at a time: a shard has one place to go on at
}

var _ cache.Level = (*Cache)(nil)

type shard struct {
	mu    sync.Mutex
	room  int64 // bytes at most
	bytes int64
	nodes map[cache.Key]*node
	// The queue: new ones come to head, hand goes from tail to head, and a purge from head to
	// tail: next is where it goes on.
	head, tail, hand, next *node
	purges                 uint64 // that have begun

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

// shard is that of a key. Clients choose what they ask, but not where it goes: a word of a
// form that changes by d moves the key's first sum by d times a word of the secret, and
// Spread folds all bits of that product into those that are used here, so whoever doesn't
// know the secret draws shards at random. Who only watches what was evicted learns them one
// request at a time, and gains no more than by filling the cache as a whole.
func (c *Cache) shard(k *cache.Key) *shard {
	return &c.shards[uint32(k.Spread())&c.mask]
}

// Quick is cache.Level: a lookup is in memory.
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

// Insert is cache.Level. An entry under the key is replaced. A purge either has the query
// stale before its entry is added, or comes to the shard after that.
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
	purges := s.purges
	if s.makeRoom(e.Size(), now) && s.purges == purges && !q.Stale() { // a purge meanwhile may have meant it
		if old := s.nodes[n.key]; old != nil {
			s.remove(old) // it came meanwhile
		}
		s.add(n)
	}
	s.inserting += c.cfg.Now() - now
}

// makeRoom evicts until there is room for so many bytes; false: they are more than the shard
// holds. It lets go of the lock, which its caller holds, every perHold nodes, until it has seen
// each of them twice: by then others fill what it frees, and it would evict for them for ever.
func (s *shard) makeRoom(size, now int64) bool {
	if size > s.room {
		return false
	}
	patience := 2 * len(s.nodes) // others may visit nodes faster than the hand comes by
	for looked := 1; s.bytes+size > s.room; looked++ {
		s.pass(now, looked > patience)
		if looked%perHold == 0 && looked <= patience {
			s.breathe()
		}
	}
	return true
}

// breathe lets others have the lock, and the processor: who waits for one may need both.
func (s *shard) breathe() {
	s.mu.Unlock()
	runtime.Gosched()
	s.mu.Lock()
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
	if s.next == n {
		s.next = n.next
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

// pass lets the hand pass one node of a shard that has some: it removes one that was not
// visited since it last came by, or has expired, or any.
func (s *shard) pass(now int64, anyOne bool) {
	n := s.hand
	if n == nil {
		n = s.tail
	}
	if n.visited && !anyOne && (n.expires == 0 || n.expires > now) {
		n.visited = false
		s.hand = n.prev
		return
	}
	s.hand = n
	s.remove(n)
	s.evictions++
}

// Purge is cache.Level.
func (c *Cache) Purge(_ context.Context, sel cache.Selector) (int64, error) {
	c.purging.Lock()
	defer c.purging.Unlock()
	var removed int64
	for i := range c.shards {
		removed += c.shards[i].purge(&sel)
	}
	return removed, nil
}

func (s *shard) purge(sel *cache.Selector) (removed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purges++
	s.next = s.head
	for looked := 1; s.next != nil; looked++ {
		n := s.next
		s.next = n.next
		if sel.Matches(n.entry) {
			s.remove(n)
			removed++
		}
		if looked%perHold == 0 {
			s.breathe()
		}
	}
	return removed
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
