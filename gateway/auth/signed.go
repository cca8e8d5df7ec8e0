package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// ProofHeader carries a caller that our ext_authz service has proved from a proxy to
// the gateway: version, payload and HMAC-SHA-256 over both, divided by dots. Who lacks
// the key can't make one, and it is read from trusted proxies alone.
const ProofHeader = "x-sluice-proof"

// signedTime is how long one is good for.
const signedTime = time.Minute

// signedVersion begins each.
const signedVersion = "v1"

// signedPayload is what is signed.
type signedPayload struct {
	Name   string   `json:"n"`
	Tenant string   `json:"t,omitempty"`
	Groups []string `json:"g,omitempty"`
	Method string   `json:"m"`
	Until  int64    `json:"e"` // Unix seconds
}

func seal(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// signPrincipal makes the header's value.
func signPrincipal(key []byte, p *infer.Principal, now time.Time) (string, error) {
	payload, err := json.Marshal(signedPayload{p.Name, p.Tenant, p.Groups, p.Method, now.Add(signedTime).Unix()})
	if err != nil {
		return "", err
	}
	text := signedVersion + "." + base64.RawURLEncoding.EncodeToString(payload)
	return text + "." + seal(key, text), nil
}

var errSigned = errors.New(ProofHeader + " is not valid")

// readSigned gives the caller of a header's value that was signed with key.
func readSigned(key []byte, value string, now time.Time) (*infer.Principal, time.Time, error) {
	at := strings.LastIndexByte(value, '.')
	if at < 0 || len(value) > maxToken || !hmac.Equal([]byte(seal(key, value[:at])), []byte(value[at+1:])) {
		return nil, time.Time{}, errSigned
	}
	payload, ok := strings.CutPrefix(value[:at], signedVersion+".")
	if !ok {
		return nil, time.Time{}, errSigned
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	var p signedPayload
	if err != nil || json.Unmarshal(raw, &p) != nil || p.Name == "" || now.Unix() >= p.Until {
		return nil, time.Time{}, errSigned
	}
	return &infer.Principal{Name: p.Name, Tenant: p.Tenant, Groups: p.Groups, Method: p.Method}, time.Unix(p.Until, 0), nil
}
