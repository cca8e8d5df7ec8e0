package admission

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
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
		many = append(many, fmt.Sprint("g", i), fmt.Sprintf("1 %d", far))
	}
	for _, row := range []struct {
		name  string
		write func(ctx context.Context, key string) error
	}{
		{"a text", func(ctx context.Context, k string) error { return client.Set(ctx, k, "x", 0).Err() }},
		{"a list", func(ctx context.Context, k string) error { return client.RPush(ctx, k, "x").Err() }},
		{"a sorted set", func(ctx context.Context, k string) error {
			return client.ZAdd(ctx, k, redisclient.Z{Score: 1, Member: "x"}).Err()
		}},
		{"words", func(ctx context.Context, k string) error { return client.HSet(ctx, k, "t", "now", "n", "some").Err() }},
		{"no numbers", func(ctx context.Context, k string) error {
			return client.HSet(ctx, k, "t", "nan", "n",
				"nan").Err()
		}},
		{"no tokens", func(ctx context.Context, k string) error { return client.HSet(ctx, k, "t", "1", "n", "-nan").Err() }},
		{"infinite", func(ctx context.Context, k string) error { return client.HSet(ctx, k, "t", "inf", "n", "inf").Err() }},
		{"an endless debt", func(ctx context.Context, k string) error {
			return client.HSet(ctx, k, "t", far, "n",
				"-inf").Err()
		}},
		{"a large debt", func(ctx context.Context, k string) error {
			return client.HSet(ctx, k, "t", far, "n",
				"-1e300").Err()
		}},
		{"claims for ever", func(ctx context.Context, k string) error {
			return client.HSet(ctx, k, "other", fmt.Sprintf("1000000 %d", far)).Err()
		}},
		{"claims without end", func(ctx context.Context, k string) error {
			return client.HSet(ctx, k, "other", strings.Repeat("9", 400)+" "+strings.Repeat("9", 400)).Err()
		}},
		{"many claims", func(ctx context.Context, k string) error { return client.HSet(ctx, k, many...).Err() }},
	} {
		for kind, file := range map[Kind]string{0: "rules: [{name: r, requests: 5/h}]",
			4: "rules: [{name: r, concurrency: 5}]"} {
			t.Run(fmt.Sprintf("%s as %s", row.name, kind), func(t *testing.T) {
				if err := client.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				l := gatewayOn(t, s.Port, file, time.Second)
				if err := row.write(t.Context(), l.table.link.key(&meterKey{rule: "r", kind: kind})); err != nil {
					t.Fatal(err)
				}
				passed := 0
				for range 20 {
					if enter(t, l, "p", 0) != nil { // held until the end
						passed++
					}
				}
				if passed != 5 {
					t.Errorf("%d calls passed, want 5", passed)
				}
				if f := l.Figures(); f.Failed > 0 || f.Late > 0 || !f.Connected {
					t.Errorf("%+v", f)
				}
			})
		}
	}
}

// liar is a store that grants what nobody asked for.
type liar struct{ got, left int64 }

func (s *liar) exchange(_ context.Context, qs []question, got, left []int64) error {
	for i := range qs {
		got[i], left[i] = s.got, s.left
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
