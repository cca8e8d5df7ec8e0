package auth

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-serve/sluice/infer"
)

// maxToken bounds the bytes of a token.
const maxToken = 16 << 10

// issuer is one issuer of tokens that are taken.
type issuer struct {
	name       string // iss; "": not looked at
	audience   []string
	algorithms []string // nil: those of the keys
	leeway     time.Duration
	claims     claimNames
	static     []verifyKey
	remote     *source // nil: none
}

// claimNames say which claims a principal is made of.
type claimNames struct {
	name, tenant, groups string // a claim's name, or a path "a.b" into claims
	prefix, groupPrefix  string
}

// The faults of tokens. They say what a caller can change, and repeat nothing of it.
var (
	errToken     = refuse("the token is not valid")
	errExpired   = refuse("the token has expired")
	errEarly     = refuse("the token is not valid yet")
	errAudience  = refuse("the token is for another audience")
	errNoKey     = refuse("the token is signed with a key that is not known")
	errName      = refuse("the token has no name of the caller")
	errKeysLater = infer.Refusef(infer.Unavailable, infer.ReasonKeysPending, "the token's key is not known yet; its issuer is being asked")
)

func refuse(text string) error {
	return infer.Refusef(infer.Unauthenticated, infer.ReasonUnauthenticated, "%s", text)
}

// looksLikeToken says that a credential has a JWT's three parts.
func looksLikeToken(s string) bool { return strings.Count(s, ".") == 2 }

// tokenHead is what is read of a token before its signature is: it chooses the issuer and
// the key, and nothing else.
type tokenHead struct {
	Alg  string          `json:"alg"`
	Kid  string          `json:"kid"`
	Crit json.RawMessage `json:"crit"`
	iss  string
}

func readHead(token string) (h tokenHead, err error) {
	if len(token) > maxToken {
		return h, errToken
	}
	parser := jwt.NewParser()
	claims := jwt.MapClaims{}
	parsed, parts, err := parser.ParseUnverified(token, claims)
	if err != nil || parsed == nil || len(parts) != 3 {
		return h, errToken
	}
	raw, err := parser.DecodeSegment(parts[0])
	if err != nil || json.Unmarshal(raw, &h) != nil || h.Crit != nil { // RFC 7515, 4.1.11: we know no critical ones
		return h, errToken
	}
	h.iss, _ = claims["iss"].(string)
	return h, nil
}

// verifyToken finds the token's caller among the issuers, and when it is to be asked
// for again.
func verifyToken(issuers []*issuer, token string, now time.Time) (*infer.Principal, time.Time, error) {
	h, err := readHead(token)
	if err != nil {
		return nil, time.Time{}, err
	}
	err = errToken
	for _, i := range issuers {
		if i.name != "" && i.name != h.iss {
			continue
		}
		var p *infer.Principal
		var until time.Time
		if p, until, err = i.verify(token, h, now); err == nil {
			return p, until, nil
		}
	}
	return nil, time.Time{}, err
}

// candidates are the keys that may have signed a token.
func (i *issuer) candidates(h tokenHead) []verifyKey {
	var all []verifyKey
	add := func(keys []verifyKey) {
		for _, k := range keys {
			fits := slices.Contains(k.algs, h.Alg) && (i.algorithms == nil || slices.Contains(i.algorithms, h.Alg))
			if fits && (h.Kid == "" || k.kid == "" || k.kid == h.Kid) {
				all = append(all, k)
			}
		}
	}
	add(i.static)
	if i.remote != nil {
		if keys := i.remote.keys.Load(); keys != nil {
			add(*keys)
		}
	}
	return all
}

func (i *issuer) verify(token string, h tokenHead, now time.Time) (*infer.Principal, time.Time, error) {
	keys := i.candidates(h)
	if len(keys) == 0 {
		if i.remote != nil && i.remote.unknown(now) {
			return nil, time.Time{}, errKeysLater
		}
		return nil, time.Time{}, errNoKey
	}
	options := []jwt.ParserOption{jwt.WithValidMethods([]string{h.Alg}), jwt.WithAudience(i.audience...), jwt.WithExpirationRequired(),
		jwt.WithLeeway(i.leeway), jwt.WithTimeFunc(func() time.Time { return now })}
	if i.name != "" {
		options = append(options, jwt.WithIssuer(i.name))
	}
	parser := jwt.NewParser(options...)
	var err error
	for _, k := range keys {
		claims := jwt.MapClaims{}
		if _, err = parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return k.key, nil }); err == nil {
			return i.principal(claims)
		}
		if !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
			break // signed by it, and not good for another reason
		}
	}
	switch {
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		err = errToken
	case errors.Is(err, jwt.ErrTokenExpired):
		err = errExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		err = errEarly
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		err = errAudience
	default:
		err = errToken
	}
	return nil, time.Time{}, err
}

// principal is the caller of claims that were verified.
func (i *issuer) principal(claims jwt.MapClaims) (*infer.Principal, time.Time, error) {
	exp, err := claims.GetExpirationTime()
	if err != nil || exp == nil {
		return nil, time.Time{}, errToken
	}
	name, _ := claim(claims, i.claims.name).(string)
	if name == "" || len(name) > maxName/2 || !printable(name) {
		return nil, time.Time{}, errName
	}
	p := &infer.Principal{Name: i.claims.prefix + name, Method: "jwt"}
	if i.claims.tenant != "" {
		tenant, _ := claim(claims, i.claims.tenant).(string)
		if tenant == "" || len(tenant) > maxName/2 || !printable(tenant) { // else it would share answers with those who have none
			return nil, time.Time{}, refuse("the token has no tenant of the caller")
		}
		p.Tenant = tenant
	}
	if i.claims.groups != "" {
		p.Groups = groupsOf(claim(claims, i.claims.groups), i.claims.groupPrefix)
	}
	return p, exp.Add(i.leeway), nil
}

// maxGroups bounds the groups that are taken of a token.
const maxGroups = 256

// groupsOf reads a list of texts, or texts divided by spaces as "scope" has them.
func groupsOf(value any, prefix string) []string {
	var all []string
	add := func(s string) {
		if s != "" && len(s) <= maxName && printable(s) && len(all) < maxGroups {
			all = append(all, prefix+s)
		}
	}
	switch v := value.(type) {
	case string:
		for _, s := range strings.Fields(v) {
			add(s)
		}
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok {
				add(s)
			}
		}
	}
	return all
}

// claim finds a claim by its name, or by a path into claims that are objects.
func claim(claims map[string]any, name string) any {
	if v, ok := claims[name]; ok {
		return v
	}
	first, rest, more := strings.Cut(name, ".")
	if !more {
		return nil
	}
	inner, ok := claims[first].(map[string]any)
	if !ok {
		return nil
	}
	return claim(inner, rest)
}
