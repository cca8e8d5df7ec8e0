package admission

import "github.com/sluice-serve/sluice/infer"

// settle charges for the bytes that came in place of those that were charged for: a
// caller's word is not what others of a rule pay for.
func (l *Limits) settle(a *account, charged, came, now int64) {
	if !a.kinds[Bytes] {
		return
	}
	for i := range a.uses {
		u := &a.uses[i]
		if u.limit.Kind != Bytes || u.peek {
			continue
		}
		switch n := came - u.ahead(charged); {
		case n > 0:
			l.spent(u, n, now)
		case n < 0:
			l.undo(u, -n, now)
		}
	}
}

// ahead is what of n is charged before a call has ended: of bytes a burst at most, since
// more is a word that nobody has kept yet.
func (u *use) ahead(n int64) int64 {
	if u.limit.Kind == Bytes {
		return min(n, int64(u.limit.Burst))
	}
	return n
}

// inRegions is the size of a request's inputs that lie in its client's shared memory, and
// so in no body. They count as if they had been sent.
func inRegions(req *infer.Request) (n int64) {
	for i := range req.Inputs {
		n += req.Inputs[i].Place.Size
	}
	return n
}

// received is the size of a request's tensors: that of its body is not known.
func received(req *infer.Request) (n int64) {
	for i := range req.Inputs {
		n += req.Inputs[i].Bytes()
	}
	return n
}

// elements counts those of all inputs. The request is valid, so none has too many.
func elements(req *infer.Request) (sum int64) {
	for i := range req.Inputs {
		n, err := infer.Elements(req.Inputs[i].Shape)
		if err != nil || n > 1<<50 {
			n = 1 << 50
		}
		sum += n
	}
	return sum
}
