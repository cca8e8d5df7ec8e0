package h2

import (
	"math"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestParseTimeout holds grpc-timeout's form: up to eight digits and a unit.
func TestParseTimeout(t *testing.T) {
	for s, want := range map[string]time.Duration{"1H": time.Hour, "2M": 2 * time.Minute, "3S": 3 * time.Second, "4m": 4 * time.Millisecond,
		"5u": 5 * time.Microsecond, "6n": 6, "99999999n": 99999999, "0S": 0, "00000001S": time.Second, "99999999H": math.MaxInt64} {
		if got, err := parseTimeout(s); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "S", "1", "1s", "1h", "-1S", "+1S", "1.5S", " 1S", "1S ", "100000000S", "xS", "1SS"} {
		if got, err := parseTimeout(s); err == nil {
			t.Errorf("%q: got %v", s, got)
		}
	}
}

// TestTimeoutRunsOut sees the server end a call whose time is up, while its client says
// nothing; and a message that is waited for no longer than that.
func TestTimeoutRunsOut(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f)
	c.call(1, "x", "do", "wait", "grpc-timeout", "20m")
	if got := c.outcome(1); !strings.HasPrefix(got, "4: ") {
		t.Errorf("a call that waits: %s", got)
	}
	c.headers(3, false, request("grpc-timeout", "20m")...)
	if got := c.outcome(3); !strings.HasPrefix(got, "4: ") {
		t.Errorf("a call without its message: %s", got)
	}
	if got := c.ping(); got != "alive" || f.memory.out.Load() != 0 {
		t.Errorf("%s, %d bytes are held", got, f.memory.out.Load())
	}
}

// TestMaxConnectionAgeGrace sees an old connection cut off though it has a call, and
// another one that ends in time left alone until then.
func TestMaxConnectionAgeGrace(t *testing.T) {
	f := start(t, func(c *Config) {
		c.MaxConnectionAge, c.MaxConnectionAgeGrace = 500*time.Millisecond, 60*time.Millisecond
	})
	c := hello(t, f)
	c.call(1, "x", "do", "wait")
	poll(t, "the handler runs", func() bool { return f.echo.running.Load() == 1 })
	goaways := 0
	for {
		fr, err := c.next()
		if err == errHang {
			t.Fatal("it is not cut off")
		}
		if err != nil {
			break
		}
		switch fr := fr.(type) {
		case *http2.GoAwayFrame:
			goaways++
		case *http2.PingFrame:
			c.must(c.fr.WritePing(true, fr.Data))
		}
	}
	if goaways == 0 || c.seen[1] != nil && c.seen[1].ended { // one, where the ping was not answered in time
		t.Errorf("%d GOAWAYs, the call %v", goaways, c.seen[1])
	}
	poll(t, "the handler ends", func() bool { return f.echo.running.Load() == 0 })
}

// TestPeerFrameSize sees answers cut as the client's SETTINGS_MAX_FRAME_SIZE says, also
// when it changes.
func TestPeerFrameSize(t *testing.T) {
	f := start(t, nil)
	c := hello(t, f, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.must(c.fr.WriteWindowUpdate(0, 1<<24))
	for i, most := range []uint32{16384, 20000, 1<<24 - 1, 16384} {
		c.must(c.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: most}))
		id := uint32(2*i + 1)
		body := message(strings.Repeat("x", 50000))
		c.headers(id, false, request()...)
		for len(body) > 0 {
			n := min(len(body), 16384)
			c.must(c.fr.WriteData(id, n == len(body), body[:n]))
			body = body[n:]
		}
		longest := uint32(0)
		for c.seen[id] == nil || !c.seen[id].ended {
			fr, err := c.next()
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := fr.(*http2.DataFrame); ok {
				longest = max(longest, d.Length)
			}
		}
		if longest > most || longest < min(most, 50005) {
			t.Errorf("frames of at most %d bytes: the longest has %d", most, longest)
		}
	}
}
