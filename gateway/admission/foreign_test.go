package admission

import (
	"strings"
	"testing"
	"time"

	redisclient "github.com/redis/go-redis/v9"

	"github.com/sluice-serve/sluice/internal/redistest"
)

// TestForeignKeyComesAndGoes: a limit whose key somebody writes over moves to another key in all gateways,
// and stays there when the foreign value is gone, so that what was spent stays spent.
func TestForeignKeyComesAndGoes(t *testing.T) {
	s := redistest.Start(t)
	client := redisclient.NewClient(&redisclient.Options{Addr: "127.0.0.1:" + s.Port})
	defer client.Close()
	const file = "rules: [{name: r, requests: 5/h}, {name: other, models: [x], requests: 5/h}]"
	a, b := gatewayOn(t, s.Port, file, time.Second), gatewayOn(t, s.Port, file, time.Second)
	key := a.table.link.key(&meterKey{rule: "r"})
	pass := func(gateways ...*Limits) (passed int) {
		for range 10 {
			for _, l := range gateways {
				if leave := enter(t, l, "p", 0); leave != nil {
					leave(nil)
					passed++
				}
			}
		}
		return passed
	}
	if n := pass(a, b); n != 5 {
		t.Fatalf("%d calls passed, want 5", n)
	}
	if err := client.Set(t.Context(), key, "foreign", 0).Err(); err != nil {
		t.Fatal(err)
	}
	const life = 1100 * time.Millisecond // as long as what Redis said is believed
	within(t, time.Minute, "the limit moves", func() bool { return pass(a, b) > 0 || a.Figures().Foreign > 0 })
	<-time.After(life)
	pass(a, b)
	if err := client.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	<-time.After(life)
	c := gatewayOn(t, s.Port, file, time.Second)
	if n := pass(a, b, c); n != 0 {
		t.Errorf("%d calls passed once the foreign value was gone, want 0", n)
	}
	if n := client.Exists(t.Context(), key, otherKey("sluice:", key, 2)).Val(); n != 1 {
		t.Errorf("the limit stands under %d keys", n)
	}
}

// TestAllKeysForeign: where foreign values stand under all keys of a limit each gateway limits alone by
// it, and shares the others.
func TestAllKeysForeign(t *testing.T) {
	s := redistest.Start(t)
	client := redisclient.NewClient(&redisclient.Options{Addr: "127.0.0.1:" + s.Port})
	defer client.Close()
	for kind, file := range map[Kind]string{
		0: "rules: [{name: r, each: principal, requests: 5/h}]",
		4: "rules: [{name: r, each: principal, concurrency: 5}]",
	} {
		var log lockedLog
		a, b := gatewayLogging(t, s.Port, file, time.Second, &log), gatewayOn(t, s.Port, file, time.Second)
		key := a.table.link.key(&meterKey{rule: "r", kind: kind, principal: "p"})
		for n, k := range (&redisStore{prefix: "sluice:"}).keys(key) {
			if err := client.Set(t.Context(), k, n, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for who, want := range map[string]int{"p": 10, "q": 5} {
			passed := 0
			for range 10 {
				for _, l := range []*Limits{a, b} {
					if enter(t, l, who, 0) != nil { // held until the end
						passed++
					}
				}
			}
			if passed != want {
				t.Errorf("%s: %d calls of %s passed, want %d", kind, passed, who, want)
			}
		}
		if f := a.Figures(); f.Failed > 0 || f.Late > 0 || !f.Connected {
			t.Errorf("%+v", f)
		}
		if text := log.String(); strings.Count(text, "under all keys") != 1 {
			t.Errorf("the log says: %s", text)
		}
	}
}
