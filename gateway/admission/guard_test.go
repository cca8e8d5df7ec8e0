package admission

import "testing"

// What becomes of Redis when calls wait in vain (w), exchanges fail (f) and go well (a).
func TestGuard(t *testing.T) {
	for _, c := range []struct {
		events string
		down   bool
	}{{"", false}, {"ww", false}, {"www", true}, {"wwaww", false}, {"f", true}, {"fa", false}, {"fww", true}, {"wwwa", false}, {"wwwaw", false}, {"faf", true}} {
		g := guard{}
		for i, e := range c.events {
			before := g.down
			var news bool
			switch e {
			case 'w':
				news = g.waited()
			case 'f':
				news = g.failed()
			case 'a':
				news = g.answered()
			}
			if news != (before != g.down) {
				t.Errorf("%s: event %d: news %v, down %v before and %v after", c.events, i, news, before, g.down)
			}
		}
		if g.down != c.down {
			t.Errorf("%s: down %v", c.events, g.down)
		}
	}
}
