package cache

import (
	"context"
	"errors"
	"slices"
)

// Tiers is a Level of several, the fastest first: what is found in one is put into
// those before it.
type Tiers []Level

var _ Level = Tiers(nil)

// Lookup is Level. What is found while a purge is under way may be what that is about to
// remove, from a level that it has not come to; so it is put nowhere else.
func (t Tiers) Lookup(ctx context.Context, q *Query) *Entry {
	for i, l := range t {
		q.End = 0
		if e := l.Lookup(ctx, q); e != nil {
			if q.during {
				return e
			}
			for _, before := range t[:i] {
				before.Insert(q, e)
			}
			return e
		}
	}
	return nil
}

// Quick says whether all of them are.
func (t Tiers) Quick() bool {
	return !slices.ContainsFunc(t, func(l Level) bool { return !l.Quick() })
}

// Insert is Level.
func (t Tiers) Insert(q *Query, e *Entry) {
	for _, l := range t {
		l.Insert(q, e)
	}
}

// Purge is Level. The slowest goes first, so that nothing is fetched from it again; the
// count is the largest of one level.
func (t Tiers) Purge(ctx context.Context, s Selector) (int64, error) {
	var most int64
	var errs []error
	for i := len(t) - 1; i >= 0; i-- {
		n, err := t[i].Purge(ctx, s)
		most = max(most, n)
		errs = append(errs, err)
	}
	return most, errors.Join(errs...)
}

// Figures is Level.
func (t Tiers) Figures() []Figures {
	var all []Figures
	for _, l := range t {
		all = append(all, l.Figures()...)
	}
	return all
}

// Close is Level.
func (t Tiers) Close(ctx context.Context) error {
	var errs []error
	for _, l := range t {
		errs = append(errs, l.Close(ctx))
	}
	return errors.Join(errs...)
}
