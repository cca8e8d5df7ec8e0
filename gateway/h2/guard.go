package h2

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// guard counts what a peer can send at little cost to itself: frames without use, calls
// that it resets at once, pings. It is pure but for the clock and the reading
// goroutine's alone.
type guard struct {
	frames  tokens
	resets  tokens
	minPing time.Duration
	most    int // strikes; 0: no bound

	lastPing int64
	strikes  int
}

// The bursts and rates that a peer may have. A well-behaved client acknowledges a ping
// for every megabyte and resets calls whose deadlines passed, far below.
const (
	frameBurst = 10000
	frameRate  = 2000
	resetBurst = 2000
	resetRate  = 500
)

func newGuard(cfg *Config) guard {
	return guard{frames: tokens{left: frameBurst, burst: frameBurst, rate: frameRate},
		resets: tokens{left: resetBurst, burst: resetBurst, rate: resetRate}, minPing: cfg.MinPingInterval, most: cfg.MaxPingStrikes}
}

// control counts a frame that carries nothing for a call.
func (g *guard) control() error {
	if !g.frames.take(infer.Now()) {
		return &connError{codeEnhanceYourCalm, "too many control frames"}
	}
	return nil
}

// reset counts a call that the peer reset or that it opened in vain.
func (g *guard) reset() error {
	if !g.resets.take(infer.Now()) {
		return &connError{codeEnhanceYourCalm, "too many resets"}
	}
	return nil
}

// ping counts a ping; with no bound on strikes it is a frame without use like others.
// lenient: something was sent to the peer since its last one, so it
// may measure. idle: it has no call and none are welcome without.
// Source: gRPC's keepalive rules (proposal A8 and its servers).
func (g *guard) ping(at int64, lenient, idle bool) error {
	if lenient {
		g.strikes, g.lastPing = 0, at
		return nil
	}
	if g.most == 0 {
		return g.control()
	}
	least := g.minPing
	if idle {
		least = idlePing
	}
	if g.lastPing != 0 && at-g.lastPing < int64(least) {
		g.strikes++
	}
	g.lastPing = at
	if g.most > 0 && g.strikes > g.most {
		return &connError{codeEnhanceYourCalm, "too_many_pings"}
	}
	return nil
}

// idlePing is the least time between pings of a client without calls.
const idlePing = 2 * time.Hour

// tokens is a bucket of tokens.
type tokens struct {
	left, burst, rate float64
	at                int64
}

func (t *tokens) take(at int64) bool {
	if t.at != 0 {
		t.left = min(t.burst, t.left+t.rate*float64(at-t.at)/1e9)
	}
	t.at = at
	if t.left < 1 {
		return false
	}
	t.left--
	return true
}
