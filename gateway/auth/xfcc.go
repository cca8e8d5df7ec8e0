package auth

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"strings"
)

// maxForwarded bounds the bytes of an x-forwarded-client-cert.
const maxForwarded = 32 << 10

// presented is what a certificate says of its holder.
type presented struct {
	uris []string
	dns  []string
	cn   string
}

// parseForwarded reads the last element of an x-forwarded-client-cert: that of the
// nearest proxy, which is the one that we trust; those before it came with the request.
// Source: Envoy, "x-forwarded-client-cert".
func parseForwarded(header string) (presented, error) {
	if len(header) > maxForwarded {
		return presented{}, fmt.Errorf("x-forwarded-client-cert has %d bytes, at most %d", len(header), maxForwarded)
	}
	var last presented
	for rest := header; ; {
		p, more, err := parseElement(rest)
		if err != nil {
			return presented{}, err
		}
		last = p
		if more == "" {
			return last, nil
		}
		rest = more[1:]
	}
}

// parseElement reads key=value;key="value" up to a comma, with which more begins.
func parseElement(s string) (p presented, more string, err error) {
	pairs := 0
	for {
		key, rest, ok := strings.Cut(s, "=")
		if !ok || strings.ContainsAny(key, ",;\"") {
			return p, "", errForwarded
		}
		value, tail, err := parseValue(rest)
		if err != nil {
			return p, "", err
		}
		if pairs++; pairs > 256 {
			return p, "", errForwarded
		}
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "uri":
			p.uris = append(p.uris, value)
		case "dns":
			p.dns = append(p.dns, value)
		case "subject":
			p.cn = commonName(value)
		}
		if tail == "" || tail[0] == ',' {
			return p, tail, nil
		}
		s = tail[1:]
	}
}

var errForwarded = errors.New("x-forwarded-client-cert is malformed")

// parseValue reads a value, quoted or not, up to its separator. What backslashes
// escape stays escaped: they are the subject's own, as RFC 2253 writes it.
func parseValue(s string) (value, tail string, err error) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, `,;"`)
		if end < 0 {
			return s, "", nil
		}
		if s[end] == '"' {
			return "", "", errForwarded
		}
		return s[:end], s[end:], nil
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			tail = s[i+1:]
			if tail != "" && tail[0] != ',' && tail[0] != ';' {
				return "", "", errForwarded
			}
			return s[1:i], tail, nil
		}
	}
	return "", "", errForwarded
}

// commonName is the CN of a subject as RFC 2253 writes it ("CN=a,OU=b", or with slashes as
// OpenSSL does); "" where it has none or several, which would leave it open whose it is.
func commonName(subject string) string {
	separator := byte(',')
	if strings.HasPrefix(subject, "/") {
		separator, subject = '/', subject[1:]
	}
	found, n := "", 0
	for start, i := 0, 0; i <= len(subject); i++ {
		if i < len(subject) && subject[i] == '\\' {
			i++
			continue
		}
		if i < len(subject) && subject[i] != separator && subject[i] != '+' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(subject[start:min(i, len(subject))]), "=")
		if ok && strings.EqualFold(strings.TrimSpace(name), "CN") {
			found, n = value, n+1
		}
		start = i + 1
	}
	if n != 1 || strings.ContainsAny(found, "\\\"") {
		return ""
	}
	return found
}

// oneCommonName is the CN of a certificate; "" where it has none or several.
func oneCommonName(name *pkix.Name) string {
	n := 0
	for _, a := range name.Names {
		if a.Type.Equal(asn1.ObjectIdentifier{2, 5, 4, 3}) {
			n++
		}
	}
	if n > 1 {
		return ""
	}
	return name.CommonName
}
