package admission

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/sluice-serve/sluice/internal/redistest"
)

// TestForeignKeys: whatever somebody wrote under the keys of limits, Redis stays in use, a limit
// lets no more pass than it says, and does not refuse for ever.
func TestForeignKeys(t *testing.T) {
	s := redistest.Start(t)
	client := redisclient.NewClient(&redisclient.Options{Addr: "127.0.0.1:" + s.Port})
	defer client.Close()
	far := time.Now().Add(100 * 365 * 24 * time.Hour).UnixMicro()
	many := make([]any, 0, 20000)
	for i := range 10000 {
		many = append(many, fmt.Sprintf("%016x", i), fmt.Sprintf("1 %d", far))
	}
	hash := func(fields ...any) foreignWrite {
		return func(ctx context.Context, k string) error { return client.HSet(ctx, k, fields...).Err() }
	}
	for _, row := range []foreignKey{
		{"a text", func(ctx context.Context, k string) error { return client.Set(ctx, k, "x", 0).Err() }},
		{"a list", func(ctx context.Context, k string) error { return client.RPush(ctx, k, "x").Err() }},
		{"a set", func(ctx context.Context, k string) error { return client.SAdd(ctx, k, "x").Err() }},
		{"a sorted set", func(ctx context.Context, k string) error {
			return client.ZAdd(ctx, k, redisclient.Z{Score: 1, Member: "x"}).Err()
		}},
		{"a stream", func(ctx context.Context, k string) error {
			return client.XAdd(ctx, &redisclient.XAddArgs{Stream: k, Values: []string{"a", "b"}}).Err()
		}},
		{"another hash", hash("user", "42", "name", "x")},
		{"words", hash("t", "now", "n", "some")},
		{"no numbers", hash("t", "nan", "n", "nan")},
		{"no tokens", hash("t", "1", "n", "-nan")},
		{"infinite", hash("t", "inf", "n", "inf")},
		{"an endless debt", hash("t", far, "n", "-inf")},
		{"a large debt", hash("t", far, "n", "-1e300")},
		{"a bucket with more", hash("t", "1", "n", "0.000000", "name", "x")},
		{"words as claims", hash("0123456789abcdef", "some words")},
		{"claims of others", hash("other", fmt.Sprintf("1000000 %d", far))},
		{"claims without end", hash("other", strings.Repeat("9", 400)+" "+strings.Repeat("9", 400))},
		{"many claims", hash(many...)},
	} {
		for kind, file := range map[Kind]string{0: "rules: [{name: r, requests: 5/h}]",
			4: "rules: [{name: r, concurrency: 5}]"} {
			t.Run(fmt.Sprintf("%s as %s", row.name, kind), func(t *testing.T) {
				if err := client.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				checkForeign(t, s.Port, client, row, kind, file)
			})
		}
	}
}

// foreignWrite puts a value under a key of a limit; foreignKey names it.
type (
	foreignWrite func(ctx context.Context, key string) error
	foreignKey   struct {
		name  string
		write foreignWrite
	}
)

// lockedLog is what a gateway writes to its log.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer // mu
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// checkForeign has two gateways, and one that starts later, share a limit of 5 though a foreign value
// stands under its key. They leave that value alone, and each says once that it uses another key.
func checkForeign(t *testing.T, port string, client *redisclient.Client, row foreignKey, kind Kind, file string) {
	var gateways []*Limits
	var logs []*lockedLog
	add := func() *Limits {
		logs = append(logs, &lockedLog{})
		l := gatewayLogging(t, port, file, time.Second, logs[len(logs)-1])
		gateways = append(gateways, l)
		return l
	}
	a, b := add(), add()
	key := a.table.link.key(&meterKey{rule: "r", kind: kind})
	if err := row.write(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	before := client.Dump(t.Context(), key).Val()
	passed := 0
	call := func(l *Limits) {
		if enter(t, l, "p", 0) != nil { // held until the end
			passed++
		}
	}
	for range 10 {
		call(a)
		call(b)
	}
	if passed != 5 {
		t.Errorf("%d calls passed, want 5", passed)
	}
	c := add() // as after a restart
	for range 5 {
		call(c)
	}
	if passed != 5 {
		t.Errorf("%d calls passed after another gateway had started, want 5", passed)
	}
	if after, ttl := client.Dump(t.Context(), key).Val(), client.PTTL(t.Context(), key).Val(); after != before || ttl != -1 {
		t.Errorf("the foreign value was changed: %q, now %q, for %v", before, after, ttl)
	}
	for i, l := range gateways {
		if f := l.Figures(); f.Failed > 0 || f.Late > 0 || !f.Connected || f.Foreign == 0 {
			t.Errorf("gateway %d: %+v", i, f)
		}
		if text := logs[i].String(); strings.Count(text, "another key") != 1 {
			t.Errorf("gateway %d says %d times that it uses another key: %s", i, strings.Count(text, "another key"), text)
		}
	}
}

// liar is a store that grants what nobody asked for.
type liar struct{ got, left int64 }

func (s *liar) exchange(_ context.Context, qs []question, answers []answer) error {
	for i := range qs {
		answers[i] = answer{got: s.got, left: s.left, key: 1}
	}
	return nil
}

func (s *liar) close() error { return nil }

// TestAnswersAreBounded: numbers that a script's answer can't have grant no more than was
// asked for, and overflow nothing.
func TestAnswersAreBounded(t *testing.T) {
	for _, kind := range []string{"requests: {rate: 1/h, burst: 5}", "concurrency: 5"} {
		for _, lie := range []liar{{math.MaxInt64, math.MaxInt64}, {math.MinInt64, math.MinInt64}, {math.MaxInt64,
			math.MinInt64}, {math.MinInt64, math.MaxInt64}, {1 << 40, 0}, {-1, -1}} {
			l := limits(t, "rules: [{name: c, "+kind+"}]", nil)
			l.table.link = newLink(t.Context(), l, &lie, "", 50*time.Millisecond)
			l.table.link.log = slog.New(slog.DiscardHandler)
			passed := 0
			for range 40 {
				if enter(t, l, "p", 0) != nil {
					passed++
				}
			}
			if lie.got < 0 && passed > 6 || lie.got > 0 && kind == "concurrency: 5" && passed > 5 {
				t.Errorf("%s, %+v: %d calls passed", kind, lie, passed)
			}
			l.table.mu.Lock()
			for key, m := range l.table.meters {
				s := m.shared
				s.mu.Lock()
				if s.credit < 0 || s.credit > 1000 || s.claim < 0 || s.claim > 1000 || s.left > 5 {
					t.Errorf("%s, %+v: %v has credit %d, claim %d, left %d", kind, lie, key, s.credit, s.claim, s.left)
				}
				s.mu.Unlock()
			}
			l.table.mu.Unlock()
			if err := l.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}
}
