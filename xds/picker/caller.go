package picker

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/xds"
)

// caller is what is known of who makes a call: what Envoy's authorization service found out,
// or else the credentials as they were shown.
type caller struct {
	found             bool // by the authorization service
	tenant, principal string
	shown             [3]string // Authorization, X-Api-Key, and the client's certificate as Envoy tells of it
}

// readFound reads what the authorization service told Envoy. Callers can't write there.
func (c *caller) readFound(m *corev3.Metadata) {
	fields := m.GetFilterMetadata()[xds.AuthzFilter].GetFields()
	if fields == nil {
		return
	}
	c.found = true
	c.tenant, c.principal = fields["tenant"].GetStringValue(), fields["principal"].GetStringValue()
}

// readShown reads a header that proves who calls, to the gateway.
func (c *caller) readShown(key, value string) {
	switch key {
	case "authorization":
		c.shown[0] = value
	case "x-api-key":
		c.shown[1] = value
	case "x-forwarded-client-cert":
		c.shown[2] = value
	}
}

// shownScope begins the scopes that stand for credentials alone.
const shownScope = "shown:"

// scope is the caller's part of a sequence's key, as gateways have it. loose says that it
// stands for the credentials alone: another call of the sequence may show other ones, as
// tokens are renewed.
func (c *caller) scope(by infer.SequenceScope) (scope string, loose bool) {
	switch {
	case by == infer.SequencesShared:
		return "", false
	case c.found:
		if scope = by.Of(c.tenant, c.principal); scope != "" {
			scope = "found:" + infer.ShortID(scope)
		}
		return scope, false
	case c.shown == [3]string{}:
		return "", false
	}
	h := sha256.New()
	for _, text := range c.shown {
		h.Write(strconv.AppendInt(nil, int64(len(text)), 10)) // a hash has no errors
		h.Write([]byte{':'})
		h.Write([]byte(text))
	}
	return shownScope + hex.EncodeToString(h.Sum(nil)[:16]), true
}
