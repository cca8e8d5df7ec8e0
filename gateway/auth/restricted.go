package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// Restriction is one --http-restricted-api or --grpc-restricted-protocol: the actions
// that need a header, and its value, or with an @ before it the file that has it.
type Restriction struct {
	Actions []infer.Action
	Key     string
	Value   string
}

// String is what may be shown of a restriction: not its value.
func (r Restriction) String() string {
	names := make([]string, len(r.Actions))
	for i, a := range r.Actions {
		names[i] = a.String()
	}
	return strings.Join(names, ",") + ":" + r.Key + "=***"
}

// GoString keeps the value out of %#v too.
func (r Restriction) GoString() string { return r.String() }

// ParseRestriction reads <categories>:<key>=<value> behind those that came before. kind
// is "api" or "protocol". Its errors have the original's words but for the value, which
// they leave out. flag names the option in them.
// Source: the original's ParseRestrictedFeatureOption, asked with good and bad options.
func ParseRestriction(flag, kind, text string, before []Restriction) (Restriction, error) {
	categories, setting, ok := strings.Cut(text, ":")
	key, value, ok2 := strings.Cut(setting, "=")
	if !ok || !ok2 || categories == "" || key == "" || value == "" {
		shown, _, secret := strings.Cut(text, "=")
		if secret {
			shown += "=…"
		}
		return Restriction{}, fmt.Errorf("--%s option format is '<config name>:<setting>=<value>'. Got %s", flag, shown)
	}
	r := Restriction{Key: key, Value: value}
	for _, name := range strings.Split(categories, ",") {
		action, ok := category(name)
		if !ok {
			return Restriction{}, fmt.Errorf("unknown restricted %s '%s'", kind, name)
		}
		again := slices.Contains(r.Actions, action)
		for _, b := range before {
			again = again || slices.Contains(b.Actions, action)
		}
		if again {
			return Restriction{}, fmt.Errorf("restricted %s '%s' can not be specified in multiple config groups", kind, name)
		}
		r.Actions = append(r.Actions, action)
	}
	return r, nil
}

// category finds a category of the original by its name.
func category(name string) (infer.Action, bool) {
	for _, a := range infer.Actions() {
		if a != infer.ActionMetrics && a.String() == name {
			return a, true
		}
	}
	return 0, false
}

// grpcKeyPrefix stands before the key of a restriction over gRPC.
// Source: the original's kRestrictedProtocolHeaderTemplate.
const grpcKeyPrefix = "triton-grpc-protocol-"

// guarded is a Restriction as calls are held against it.
type guarded struct {
	header string // as the transport has it
	digest [sha256.Size]byte
	err    error // for who has not the header
}

// restrictions are those of one protocol, by action; nil: the action has none.
type restrictions []*guarded

// newRestrictions reads the values that are in files.
func newRestrictions(all []Restriction, grpc bool, read func(name string) ([]byte, error)) (restrictions, error) {
	if len(all) == 0 {
		return nil, nil
	}
	out := make(restrictions, len(infer.Actions()))
	for _, r := range all {
		value := r.Value
		if name, ok := strings.CutPrefix(value, "@"); ok {
			data, err := read(name)
			if err != nil {
				return nil, fmt.Errorf("the value of the restricted API header '%s': %w", r.Key, err)
			}
			if value = strings.TrimRight(string(data), "\r\n"); value == "" {
				return nil, errors.New("the value of the restricted API header '" + r.Key + "' is empty in its file")
			}
		}
		g := &guarded{header: r.Key, digest: sha256.Sum256([]byte(value)),
			err: infer.Refusef(infer.PermissionDenied, infer.ReasonRestricted, "This API is restricted, expecting header '%s'", r.Key)}
		if grpc {
			g.header = strings.ToLower(grpcKeyPrefix + r.Key)
			g.err = infer.Refusef(infer.Unavailable, infer.ReasonRestricted, "This protocol is restricted, expecting header '%s%s'", grpcKeyPrefix, r.Key)
		}
		for _, a := range r.Actions {
			out[a] = g
		}
	}
	return out, nil
}

// check holds a call against the restriction of its action. shown says that there is
// one, and that the call has its header.
func (r restrictions) check(env *infer.Envelope) (shown bool, err error) {
	if int(env.Action) >= len(r) || r[env.Action] == nil {
		return false, nil
	}
	g := r[env.Action]
	digest := sha256.Sum256([]byte(env.Header(g.header)))
	if subtle.ConstantTimeCompare(digest[:], g.digest[:]) != 1 {
		return false, g.err
	}
	return true, nil
}
