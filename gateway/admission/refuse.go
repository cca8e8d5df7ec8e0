package admission

import (
	"fmt"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// reasons are those of the kinds.
func reason(k Kind) infer.Reason {
	switch k {
	case Concurrency:
		return infer.ReasonConcurrency
	case BytesInFlight:
		return infer.ReasonBytesInFlight
	case Sequences:
		return infer.ReasonSequences
	}
	return infer.ReasonRate
}

// refusal is what the caller is told: which limit, whose, and when to come back.
func refusal(u *use, n, wait int64, key *accountKey) error {
	who := ""
	switch u.rule.each {
	case EachPrincipal:
		if key.principal == "" {
			who = " of callers without a name"
			break
		}
		who = fmt.Sprintf(" of principal '%s'", key.principal)
	case EachModel:
		who = " of " + model(key)
	case EachBoth:
		who = fmt.Sprintf(" of principal '%s' with %s", key.principal, model(key))
	case EachRemote:
		who = " of your address"
	}
	e := &infer.Error{Code: infer.ResourceExhausted, Reason: reason(u.limit.Kind), Retry: time.Duration(wait)}
	if wait == 0 {
		e.Err = fmt.Errorf("limit '%s'%s: %s; a body of %d bytes can never pass", u.rule.Name, who, u.limit.text, n)
		return e
	}
	e.Err = fmt.Errorf("limit '%s'%s: %s; try again in %v", u.rule.Name, who, u.limit.text, time.Duration(wait).Round(time.Millisecond))
	return e
}

func model(key *accountKey) string {
	if key.model == "" {
		return "calls of no known model"
	}
	return "model '" + key.model + "'"
}
