package h2

import "testing"

// A call whose message is there is not quiet, though its client has not ended its stream yet:
// nothing of it is counted when it is over.
func TestQuietIsOver(t *testing.T) {
	f := start(t, func(c *Config) { c.MaxQuiet = 3 })
	c := hello(t, f)
	for i := range uint32(9) {
		id := 2*i + 1
		c.together(func() {
			c.headers(id, false, request("do", "now")...)
			c.must(c.fr.WriteData(id, false, message("x")))
		})
		if got := c.outcome(id); got != "0 x" { // answered before its end has come
			t.Fatalf("call %d: %s", i, got)
		}
		c.must(c.fr.WriteData(id, true, nil))
	}
	poll(t, "nothing is counted any more", func() bool { return f.s.quiet.Load() == 0 })
}
