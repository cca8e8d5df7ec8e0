package admission

// guard decides whether Redis is asked. It is plain state. The zero value asks.
type guard struct {
	down bool
	late int // calls in a row that did not wait for its answer any longer
}

// tolerance is how many calls in a row may have waited in vain.
const tolerance = 3

// answered says that Redis did what it was asked; the result says that this brought it
// back.
func (g *guard) answered() (back bool) {
	back = g.down
	*g = guard{}
	return back
}

// failed says that it did not; the result says that this was news.
func (g *guard) failed() (news bool) {
	news = !g.down
	g.down = true
	return news
}

// waited says that a call gave up waiting; the result says that no further one will wait.
func (g *guard) waited() (news bool) {
	if g.down {
		return false
	}
	g.late++
	g.down = g.late >= tolerance
	return g.down
}
