package redis

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestBreakerTranscript plays testdata/breaker.txt: each line is an event at a time in
// milliseconds, and what came of it. "ask" gives a ticket or says no; "ok", "fail" and
// "left" end the call with the ticket that follows.
func TestBreakerTranscript(t *testing.T) {
	const file = "testdata/breaker.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b := &breaker{cfg: defaultBreaker()}
	var out strings.Builder
	for lines := bufio.NewScanner(strings.NewReader(string(text))); lines.Scan(); {
		event, want, _ := strings.Cut(lines.Text(), " -> ")
		fields := strings.Fields(event)
		if len(fields) < 2 || fields[0] == "#" {
			fmt.Fprintln(&out, lines.Text())
			continue
		}
		got := play(t, b, fields)
		if got != want && !*update {
			t.Errorf("%s: got %s, want %s", event, got, want)
		}
		fmt.Fprintf(&out, "%s -> %s\n", event, got)
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func play(t *testing.T, b *breaker, fields []string) string {
	ms, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	now := int64(ms) * int64(time.Millisecond)
	ticket := uint64(0)
	if len(fields) > 2 {
		if ticket, err = strconv.ParseUint(fields[2], 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	what := ""
	switch fields[1] {
	case "ask":
		ticket, ok := b.allow(now)
		if !ok {
			return "no"
		}
		return "ticket " + strconv.FormatUint(ticket, 10)
	case "ok":
		if b.success(ticket) {
			what = "closes, "
		}
	case "fail":
		if b.failure(ticket, now) {
			what = fmt.Sprintf("opens for %v, ", b.pause)
		}
	case "left":
		b.undecided(ticket)
	}
	state := "closed"
	if b.open {
		state = "open"
	}
	return fmt.Sprintf("%s%s, score %d", what, state, b.score)
}

// Against random ends of calls: while it is open at most one call is under way that it
// allowed since it opened, pauses stay within their bounds, and it closes when the probe
// succeeds.
func TestBreakerRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		b := &breaker{cfg: defaultBreaker()}
		now := int64(1)
		type call struct {
			ticket uint64
			opened int // times it had opened when the call was allowed
		}
		var under []call
		opened := 0
		bad := rng.Float64()
		for range 500 {
			now += rng.Int64N(int64(400 * time.Millisecond))
			if rng.IntN(2) == 0 {
				if ticket, ok := b.allow(now); ok {
					if b.open && now < b.until {
						t.Fatal("asked before the pause was over")
					}
					under = append(under, call{ticket, opened})
				}
			}
			if len(under) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(under))
				c := under[i]
				under = append(under[:i], under[i+1:]...)
				was, probe := b.open, b.probing && c.ticket == b.life
				switch {
				case rng.IntN(10) == 0:
					b.undecided(c.ticket)
				case rng.Float64() < bad:
					if b.failure(c.ticket, now) {
						opened++
					}
				default:
					b.success(c.ticket)
					if was && b.open == probe {
						t.Fatalf("open %v after a success, probe %v", b.open, probe)
					}
				}
			}
			if b.open {
				since := 0
				for _, c := range under {
					if c.opened == opened && c.ticket == b.life {
						since++
					}
				}
				if since > 1 || b.pause < b.cfg.base || b.pause > b.cfg.longest {
					t.Fatalf("%d calls under way, pause %v", since, b.pause)
				}
			}
		}
	}
}
