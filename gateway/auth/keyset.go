package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// verifyKey is a key that tokens are verified with, and the algorithms that it is for:
// the key says so, never the token. Key is what golang-jwt takes for those.
type verifyKey struct {
	kid  string
	algs []string
	key  any
}

// maxKeys bounds the keys of one issuer.
const maxKeys = 64

// minSecret bounds the bytes of an HMAC secret from below.
// Source: RFC 7518, 3.2, for HS256.
const minSecret = 32

// parseKeyFile reads the keys of a file: PEM (public keys or certificates), or a JWK or
// a set of them. HMAC secrets are taken from JWKs of the type oct, where secrets are.
func parseKeyFile(data []byte, secrets bool) ([]verifyKey, error) {
	if trimmed := bytes.TrimSpace(data); bytes.HasPrefix(trimmed, []byte("{")) {
		return parseJWKs(trimmed, secrets)
	}
	var all []verifyKey
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			key, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			key, err = x509.ParsePKCS1PublicKey(block.Bytes)
		case "CERTIFICATE":
			var c *x509.Certificate
			if c, err = x509.ParseCertificate(block.Bytes); err == nil {
				key = c.PublicKey
			}
		default:
			err = fmt.Errorf("it has a block '%s', and is to have public keys or certificates", clean(block.Type))
		}
		if err != nil {
			return nil, err
		}
		k, err := verifying(key, "", "")
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil, errors.New("it has neither PEM blocks nor a JWK")
	}
	return all, nil
}

// parseJWKs reads a JWK or a set of them. Keys of a set that we can't verify with (other
// types, for encryption) are left out, as RFC 7517, 5, wants; a set without any is an
// error.
func parseJWKs(data []byte, secrets bool) ([]verifyKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, errors.New("it is no JSON") // the error could repeat a secret
	}
	if set.Keys == nil {
		set.Keys = []json.RawMessage{data}
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys, at most %d", len(set.Keys), maxKeys)
	}
	var all []verifyKey
	var last error
	for _, raw := range set.Keys {
		k, err := parseJWK(raw, secrets)
		if err != nil {
			last = err
			continue
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		if last == nil {
			last = errors.New("the set is empty")
		}
		return nil, last
	}
	return all, nil
}

func parseJWK(raw []byte, secrets bool) (verifyKey, error) {
	var jwk jose.JSONWebKey
	if err := jwk.UnmarshalJSON(raw); err != nil {
		return verifyKey{}, errors.New("a JWK can't be read")
	}
	if jwk.Use != "" && jwk.Use != "sig" {
		return verifyKey{}, errors.New("a JWK is not for signatures")
	}
	key := jwk.Key
	if secret, ok := key.([]byte); ok {
		if !secrets {
			return verifyKey{}, errors.New("a JWK is a secret, which has no place in what is published")
		}
		return verifying(secret, jwk.KeyID, jwk.Algorithm)
	}
	if public := jwk.Public(); public.Key != nil {
		key = public.Key
	}
	return verifying(key, jwk.KeyID, jwk.Algorithm)
}

// verifying is a key with the algorithms that fit it, or the one that its maker names.
func verifying(key any, kid, alg string) (verifyKey, error) {
	k := verifyKey{kid: kid, key: key}
	switch key := key.(type) {
	case *rsa.PublicKey:
		if key.N.BitLen() < 2048 {
			return k, fmt.Errorf("an RSA key has %d bits, at least 2048", key.N.BitLen())
		}
		k.algs = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	case *ecdsa.PublicKey:
		name := map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[key.Curve.Params().BitSize]
		if name == "" {
			return k, fmt.Errorf("no algorithm for the curve %s", key.Curve.Params().Name)
		}
		k.algs = []string{name}
	case ed25519.PublicKey:
		k.algs, k.key = []string{"EdDSA"}, crypto.PublicKey(key)
	case []byte:
		if len(key) < minSecret {
			return k, fmt.Errorf("a secret has %d bytes, at least %d", len(key), minSecret)
		}
		k.algs = []string{"HS256", "HS384", "HS512"}
	default:
		return k, fmt.Errorf("keys of the type %T verify nothing here", key)
	}
	if alg != "" {
		if !slices.Contains(k.algs, alg) {
			return k, fmt.Errorf("a key is for the algorithm '%s', which does not fit it", clean(alg))
		}
		k.algs = []string{alg}
	}
	return k, nil
}
