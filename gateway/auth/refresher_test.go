package auth

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/internal/transcript"
)

var update = transcript.Flag()

// TestRefresher: events of a source of keys, and when the next fetch is due then.
func TestRefresher(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte {
		start := time.Unix(0, 0)
		now, r := start, refresher{tried: start}
		var out bytes.Buffer
		return transcript.Replay(t, text, &out, func(verb string, args []string) error {
			switch verb {
			case "at":
				d, err := time.ParseDuration(args[0])
				if err != nil {
					return err
				}
				now = start.Add(d)
				return nil
			case "begin":
				r.begin(now)
			case "end":
				r.end(args[0] == "ok")
			case "unknown":
				fmt.Fprintf(&out, "  pending: %t\n", r.unknown(now))
			default:
				return fmt.Errorf("no event %s", verb)
			}
			if at, ok := r.next(); ok {
				fmt.Fprintf(&out, "  next at %v\n", at.Sub(start))
			} else {
				fmt.Fprintln(&out, "  running")
			}
			return nil
		})
	})
}

// TestRefresherAtRandom: whatever comes when, keys are fetched at least every five
// minutes where the issuer answers, never more often than it bears, and one at a time.
func TestRefresherAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(0, 0)
		r := refresher{tried: now}
		var begun time.Time
		fetches := 0
		for range 300 {
			if rng.IntN(3) == 0 {
				pending := r.unknown(now)
				if !pending && r.failures == 0 && now.Sub(r.tried) >= unknownEvery {
					t.Fatalf("seed %d: a token with an unknown key is refused %v after the last fetch", seed, now.Sub(r.tried))
				}
			}
			at, ok := r.next()
			if !ok {
				t.Fatalf("seed %d: a fetch runs and nobody ends it", seed)
			}
			if r.good && at.Sub(now) > refreshEvery {
				t.Fatalf("seed %d: the next fetch is %v away", seed, at.Sub(now))
			}
			step := time.Duration(rng.Int64N(int64(time.Minute)))
			if now.Add(step).Before(at) {
				now = now.Add(step)
				continue
			}
			if at.After(now) {
				now = at
			}
			if fetches > 0 && now.Sub(begun) < retryFirst {
				t.Fatalf("seed %d: two fetches within %v", seed, now.Sub(begun))
			}
			begun = now
			fetches++
			r.begin(now)
			if _, ok := r.next(); ok {
				t.Fatalf("seed %d: a second fetch while one runs", seed)
			}
			now = now.Add(time.Duration(rng.Int64N(int64(fetchTime))))
			r.end(rng.IntN(2) == 0)
		}
		if fetches < 10 {
			t.Fatalf("seed %d: %d fetches", seed, fetches)
		}
	}
}
