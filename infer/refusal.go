package infer

import "sync/atomic"

// Refusal remembers when memory was last refused. Memory counts as scarce for a while after that, however much is
// free: it may lie in pieces that are too small. The zero value remembers none. Safe for concurrent use.
type Refusal struct{ at atomic.Int64 } // on the clock of Now; 0: never

// scarceAfter is how long, in ns, a refusal counts.
const scarceAfter = 2_000_000_000

// Note says that memory was refused now.
func (r *Refusal) Note() { r.at.Store(Now()) }

// Recent says that memory was refused in the last two seconds.
func (r *Refusal) Recent() bool {
	at := r.at.Load()
	return at != 0 && Now()-at < scarceAfter
}
