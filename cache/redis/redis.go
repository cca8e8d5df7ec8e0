package redis

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	redisclient "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/infer"
)

// Cache is a cache.Level in Redis.
type Cache struct {
	cfg    Config
	log    *slog.Logger
	client *redisclient.Client

	fills   chan fill
	room    atomic.Int64  // bytes that the queue may still take
	purges  atomic.Uint64 // fills from before a purge are dropped
	writing chan struct{} // room for one: taken while fills are on their way
	stop    context.CancelFunc
	ended   chan struct{}

	asking sync.WaitGroup // lookups under way

	purgeTime time.Duration // the longest purge

	lookups, hits, failures, dropped atomic.Uint64
	looking, inserting               atomic.Int64 // nanoseconds

	mu      sync.Mutex
	breaker breaker // mu
}

var _ cache.Level = (*Cache)(nil)

// quiet settles the client library's log, which is one for the process, before the first
// client runs: what fails is counted, and the breaker's changes are logged by us.
var quiet sync.Once

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// New makes a level and starts its fills, which Close ends. Redis need not be there. It
// fails on TLS files that can't be read.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Cache, error) {
	cfg = cfg.withDefaults()
	client, err := cfg.Client()
	if err != nil {
		return nil, infer.Errorf(infer.InvalidArg, "Failed to initialize RedisCache: %w", err)
	}
	c := &Cache{cfg: cfg, log: log, client: client, fills: make(chan fill, maxFills), writing: make(chan struct{}, 1),
		ended: make(chan struct{}), breaker: breaker{cfg: defaultBreaker()}, purgeTime: purgeTime}
	c.room.Store(maxFillBytes)
	ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	go c.run(ctx)
	return c, nil
}

// Client makes the client library's client of a Redis that need not be there. It fails on
// TLS files that can't be read.
func (c Config) Client() (*redisclient.Client, error) {
	c = c.withDefaults()
	quiet.Do(func() { redisclient.SetLogger(silent{}) })
	secure, err := c.TLS.config(c.Host)
	if err != nil {
		return nil, err
	}
	o := &redisclient.Options{Addr: c.address(), Username: c.User, Password: c.Password, DB: c.DB,
		Protocol: 2, MaxRetries: -1, DialerRetries: 1, DialTimeout: c.ConnectTimeout, ReadTimeout: c.SocketTimeout,
		WriteTimeout: c.SocketTimeout, ContextTimeoutEnabled: true, PoolSize: c.PoolSize, PoolTimeout: c.WaitTimeout,
		DisableIdentity: true, TLSConfig: secure,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}}
	boundReplies(o)
	return redisclient.NewClient(o), nil
}

// Quick is cache.Level: a lookup waits for Redis.
func (c *Cache) Quick() bool { return false }

// Lookup is cache.Level: one GETRANGE within the budget.
func (c *Cache) Lookup(ctx context.Context, q *cache.Query) *cache.Entry {
	key, ok := q.Shared()
	if !ok {
		return nil
	}
	start := infer.Now()
	c.lookups.Add(1)
	defer func() { c.looking.Add(infer.Now() - start) }()
	ticket, ok := c.allow(start)
	if !ok {
		return nil
	}
	value, err := c.get(ctx, c.key(q, &key))
	switch {
	case isWrongType(err) || err == nil && len(value) == 0:
		c.succeeded(ticket)
		return nil
	case err != nil && ctx.Err() != nil:
		c.undecided(ticket)
		return nil
	case err != nil:
		c.failed(ticket, err)
		return nil
	}
	c.succeeded(ticket)
	resp, stored, ok := decode(value, &key)
	if !ok {
		return nil
	}
	now := infer.Now()
	e := cache.Adopt(q, &resp, now-max(0, int64(time.Since(stored))), c.ttl(q.Subject))
	if e == nil || !e.Alive(now) {
		return nil
	}
	c.hits.Add(1)
	return e
}

// get is one GETRANGE, empty where there is nothing, that is waited for no longer than the
// budget: what is longer than any value of ours is not brought over. It has a goroutine of its
// own, since the client's greeting on a new connection does not look at deadlines; the
// connection's timeouts end it.
func (c *Cache) get(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Budget)
	defer cancel()
	type answer struct {
		value []byte
		err   error
	}
	got := make(chan answer, 1)
	c.asking.Go(func() {
		value, err := c.client.GetRange(ctx, name, 0, maxBytes).Bytes()
		got <- answer{value, err}
	})
	select {
	case a := <-got:
		return a.value, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// isWrongType says that something of another kind stands under the key.
func isWrongType(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE")
}

// ttl is how long an answer of the version is kept.
func (c *Cache) ttl(s *cache.Subject) time.Duration {
	if s.TTL != 0 {
		return s.TTL
	}
	return c.cfg.TTL
}

// escape makes text that has neither a separator nor a glob's special characters.
func escape(s string) string { return url.QueryEscape(s) }

// key is where the answer stands: prefix, model, version, tags, and the hash, so that
// what is to be purged is found by its key.
func (c *Cache) key(q *cache.Query, hash *[32]byte) string {
	var b strings.Builder
	b.Grow(len(c.cfg.Prefix) + len(q.Subject.Model) + len(q.Subject.Version) + 80)
	b.WriteString(c.cfg.Prefix)
	b.WriteString(escape(q.Subject.Model))
	b.WriteByte(':')
	b.WriteString(q.Subject.Version)
	b.WriteByte(':')
	if len(q.Tags) > 0 {
		b.WriteByte(',')
	}
	for _, t := range q.Tags {
		b.WriteString(escape(t))
		b.WriteByte(',')
	}
	b.WriteByte(':')
	var text [64]byte
	b.Write(hex.AppendEncode(text[:0], hash[:]))
	return b.String()
}

// isKey says that a name has the form of what key makes.
func (c *Cache) isKey(name string) bool {
	parts := strings.Split(strings.TrimPrefix(name, c.cfg.Prefix), ":")
	if len(parts) != 4 || len(parts[3]) != 64 {
		return false
	}
	_, err := hex.DecodeString(parts[3])
	return err == nil
}

// pattern finds the keys that a selector selects.
func (c *Cache) pattern(s *cache.Selector) string {
	part := func(v, before, after string) string {
		if v == "" {
			return "*"
		}
		return before + escape(v) + after
	}
	prefix := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(c.cfg.Prefix)
	return prefix + part(s.Model, "", "") + ":" + part(s.Version, "", "") + ":" + part(s.Tag, "*,", ",*") + ":*"
}

// purgeStep is how many keys one SCAN looks at.
const purgeStep = 1000

// purgeTime bounds a purge: that of a hundred million keys takes a minute.
const purgeTime = 5 * time.Minute

// Purge is cache.Level. A single load is not known here: its answers are right for as
// long as the same content is loaded anywhere.
func (c *Cache) Purge(ctx context.Context, s cache.Selector) (int64, error) {
	if s.Load != 0 {
		return 0, nil
	}
	// What this process has queued must not come after the purge.
	c.purges.Add(1)
	select {
	case c.writing <- struct{}{}:
		<-c.writing
	case <-ctx.Done():
		return 0, infer.Errorf(infer.Cancelled, "purging the cache in Redis: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, c.purgeTime)
	defer cancel()
	var removed int64
	for cursor := uint64(0); ; {
		keys, next, err := c.client.Scan(ctx, cursor, c.pattern(&s), purgeStep).Result()
		// Limits stand under the same prefix as a rule, and whatever other programs put there.
		if keys = slices.DeleteFunc(keys, func(name string) bool { return !c.isKey(name) }); err == nil && len(keys) > 0 {
			var n int64
			n, err = c.client.Unlink(ctx, keys...).Result()
			removed += n
		}
		if err != nil {
			return removed, infer.Errorf(infer.Unavailable, "purging the cache in Redis: %w", err)
		}
		if cursor = next; cursor == 0 {
			return removed, nil
		}
	}
}

// Figures is cache.Level.
func (c *Cache) Figures() []cache.Figures {
	c.mu.Lock()
	open := c.breaker.open
	c.mu.Unlock()
	return []cache.Figures{{Level: "redis", Lookups: c.lookups.Load(), Hits: c.hits.Load(), Lookup: time.Duration(c.looking.Load()),
		Insertion: time.Duration(c.inserting.Load()), Failures: c.failures.Load(), Dropped: c.dropped.Load(), Open: open}}
}

// Close is cache.Level. What waits to be filled is dropped.
func (c *Cache) Close(context.Context) error {
	c.stop()
	<-c.ended
	err := c.client.Close()
	c.asking.Wait()
	return err
}

func (c *Cache) allow(now int64) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaker.allow(now)
}

func (c *Cache) succeeded(ticket uint64) {
	c.mu.Lock()
	closed := c.breaker.success(ticket)
	c.mu.Unlock()
	if closed {
		c.log.Info("response cache: Redis answers again", slog.String("address", c.cfg.address()))
	}
}

func (c *Cache) failed(ticket uint64, err error) {
	c.failures.Add(1)
	c.mu.Lock()
	opened := c.breaker.failure(ticket, infer.Now())
	pause := c.breaker.pause
	c.mu.Unlock()
	if opened {
		c.log.Warn("response cache: Redis is not asked for a while", slog.String("address", c.cfg.address()), slog.Duration("pause", pause),
			slog.String("error", clip(err.Error())))
	}
}

// clip bounds what the log repeats of a server's words.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 256)], "") }

func (c *Cache) undecided(ticket uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breaker.undecided(ticket)
}
