package redis

import (
	"context"
	"errors"
	"time"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

const (
	// maxFills and maxFillBytes bound what waits to be written.
	maxFills     = 1024
	maxFillBytes = 64 << 20
	// perTrip is how many fills go in one round trip.
	perTrip = 32
)

// fill is an entry on its way.
type fill struct {
	name  string
	key   [32]byte
	entry *cache.Entry
	ttl   time.Duration // ≤ 0: no end
	epoch uint64        // purges before it
}

// Insert is cache.Level: it queues e, or drops it.
func (c *Cache) Insert(q *cache.Query, e *cache.Entry) {
	epoch := c.purges.Load() // first: a purge that Stale does not know of counts after it
	key, ok := q.Shared()
	if !ok || e.Size() > maxValue || q.Stale() {
		return
	}
	if c.room.Add(-e.Size()) < 0 {
		c.room.Add(e.Size())
		c.dropped.Add(1)
		return
	}
	select {
	case c.fills <- fill{c.key(q, &key), key, e, c.ttl(q.Subject), epoch}:
	default:
		c.room.Add(e.Size())
		c.dropped.Add(1)
	}
}

// run writes fills until ctx ends.
func (c *Cache) run(ctx context.Context) {
	defer close(c.ended)
	trip := make([]fill, 0, perTrip)
	for {
		select {
		case f := <-c.fills:
			trip = append(trip[:0], f)
		case <-ctx.Done():
			return
		}
		for len(trip) < perTrip {
			select {
			case f := <-c.fills:
				trip = append(trip, f)
				continue
			default:
			}
			break
		}
		c.writing <- struct{}{}
		c.write(ctx, trip)
		<-c.writing
		for i := range trip {
			c.room.Add(trip[i].entry.Size())
		}
		clear(trip)
	}
}

// write sends one trip of fills; while the breaker is open it drops them. A fill is no
// probe: a lookup tells sooner.
func (c *Cache) write(ctx context.Context, trip []fill) {
	start := infer.Now()
	defer func() { c.inserting.Add(infer.Now() - start) }()
	c.mu.Lock()
	open, ticket := c.breaker.open, c.breaker.life
	c.mu.Unlock()
	if open {
		c.dropped.Add(uint64(len(trip)))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.SocketTimeout)
	defer cancel()
	pipe := c.client.Pipeline()
	now := time.Now()
	epoch := c.purges.Load()
	for i := range trip {
		f := &trip[i]
		if f.epoch != epoch {
			continue
		}
		value := encode(&f.key, f.entry, now.Add(-time.Duration(infer.Now()-f.entry.Stored)))
		pipe.Set(ctx, f.name, value, max(0, f.ttl))
	}
	if pipe.Len() == 0 {
		return
	}
	if _, err := pipe.Exec(ctx); err != nil {
		c.dropped.Add(uint64(len(trip)))
		var refused redisclient.Error // Redis has no room, for instance: it is there and answers
		if !errors.As(err, &refused) {
			c.failed(ticket, err)
		}
	}
}
