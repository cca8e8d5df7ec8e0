package infer

import (
	"slices"
	"strings"
)

// Correlation identifies a sequence among those of one scope; the zero value is none.
// Source: sequence extension; a number or a string, never both.
type Correlation struct {
	ID  uint64
	Str string
}

// IsZero says that the request belongs to no sequence.
func (c Correlation) IsZero() bool { return c.ID == 0 && c.Str == "" }

// SequenceScope says who shares correlation IDs: of callers in different scopes, equal IDs
// name different sequences. The zero value is SequencesByTenant.
type SequenceScope uint8

// The scopes. Callers of whom neither tenant nor name is known share their IDs.
const (
	SequencesByTenant SequenceScope = iota // callers of one tenant share IDs; so do all callers without one
	SequencesByCaller                      // each principal has IDs of its own
	SequencesShared                        // all callers share IDs, as in Triton
)

// scopeNames are the scopes' names by their number.
var scopeNames = [...]string{"tenant", "caller", "none"}

// String is the scope's name, as flags have it.
func (s SequenceScope) String() string { return scopeNames[s] }

// ParseSequenceScope is the scope of a name. Its error tells the names.
func ParseSequenceScope(name string) (SequenceScope, error) {
	i := slices.Index(scopeNames[:], name)
	if i < 0 {
		return 0, Errorf(InvalidArg, "'%s' is not one of %s", name, strings.Join(scopeNames[:], ", "))
	}
	return SequenceScope(i), nil
}

// Of is the scope's part of a sequence's key for a caller; "" is everybody's.
func (s SequenceScope) Of(tenant, caller string) string {
	switch s {
	case SequencesByTenant:
		return tenant
	case SequencesByCaller:
		return caller
	}
	return ""
}
