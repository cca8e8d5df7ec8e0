package auth

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// keyPrefix begins the API keys that we make, so that scanners of source code and logs
// know them.
const keyPrefix = "sluice_"

// maxName bounds the bytes of a principal's name.
const maxName = 512

// NewKey makes an API key of 256 random bits, and the line for the file of keys, which
// has its digest only. tenant and groups may be empty.
func NewKey(name, tenant string, groups []string) (key, line string, err error) {
	if err := checkKeyName(name); err != nil {
		return "", "", err
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it never fails
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(random)
	digest := sha256.Sum256([]byte(key))
	line = name + " sha256:" + hex.EncodeToString(digest[:])
	if tenant != "" {
		line += " tenant=" + tenant
	}
	if len(groups) > 0 {
		line += " groups=" + strings.Join(groups, ",")
	}
	if _, err := parseKeyLine(line); err != nil {
		return "", "", err
	}
	return key, line, nil
}

// checkKeyName refuses names that a JWT or a certificate could give as well: theirs have
// a colon. See identityFile.
func checkKeyName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("a principal's name has 1 to %d characters", maxName)
	case name == anonymous || name == authenticated:
		return fmt.Errorf("'%s' is a word of the policy, not a name", name)
	case !printable(name) || strings.ContainsAny(name, " :#*?"):
		return fmt.Errorf("'%s' is no name of a key: no spaces, no control characters, none of : # * ?", clean(name))
	}
	return nil
}

// printable says that a name can stand in logs and headers: printable ASCII.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clean makes text of a file fit for an error.
func clean(s string) string {
	return strings.ToValidUTF8(strings.Map(visible, s[:min(len(s), 64)]), "?")
}

func visible(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '?'
	}
	return r
}

// apiKey is one line of the file of keys.
type apiKey struct {
	digest    [sha256.Size]byte
	expires   time.Time // zero: never
	principal *infer.Principal
}

// keys finds principals by API keys. Lookup is by the first bytes of the digest, which
// says nothing of the key; what decides is a comparison in constant time.
type keys map[uint64][]*apiKey

// noKeys is the line of a file of keys that is meant to have none.
const noKeys = "no keys"

// parseKeys reads a file of API keys, one in a line:
//
//	NAME sha256:HEX [tenant=NAME] [groups=NAME,NAME] [expires=2027-01-31]
//
// Empty lines and those that begin with # are left out. A name may have several keys,
// which then agree in all but their digest and their end. A file without keys is an
// error, but for one that has the line "no keys".
func parseKeys(file string, data []byte) (keys, error) {
	f := &faults{file: file}
	all := keys{}
	names := map[string]*infer.Principal{}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: %d bytes, at most %d", file, len(data), maxFile)
	}
	n, none := 0, false
	for line := range bytes.Lines(data) {
		n++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		if text == noKeys {
			none = true
			continue
		}
		k, err := parseKeyLine(text)
		if err == nil {
			err = all.add(k, names)
		}
		if err != nil && len(f.errs) < 20 {
			f.errs = append(f.errs, fmt.Errorf("%s:%d: %w", file, n, err))
		}
	}
	switch {
	case len(f.errs) > 0:
	case none && len(all) > 0:
		f.errs = append(f.errs, fmt.Errorf("%s: it has keys, and a line '%s'", file, noKeys))
	case !none && len(all) == 0:
		f.errs = append(f.errs, fmt.Errorf("%s: %w; write a line '%s' if no key is to count", file, configfile.ErrEmpty, noKeys))
	}
	return all, f.err()
}

func (k keys) add(key *apiKey, names map[string]*infer.Principal) error {
	p := key.principal
	if before := names[p.Name]; before == nil {
		names[p.Name] = p
	} else if before.Tenant != p.Tenant || strings.Join(before.Groups, ",") != strings.Join(p.Groups, ",") {
		return fmt.Errorf("'%s' has another tenant or other groups in a line above", p.Name)
	} else {
		key.principal = before
	}
	at := binary.LittleEndian.Uint64(key.digest[:])
	for _, other := range k[at] {
		if other.digest == key.digest {
			return fmt.Errorf("the key of '%s' is in a line above", p.Name)
		}
	}
	k[at] = append(k[at], key)
	return nil
}

// parseKeyLine never repeats the digest's text: who pastes a key there has not shown it to
// the log.
func parseKeyLine(text string) (*apiKey, error) {
	parts := strings.Fields(text)
	if err := checkKeyName(parts[0]); err != nil {
		return nil, err
	}
	k := &apiKey{principal: &infer.Principal{Name: parts[0], Method: "api-key"}}
	if len(parts) < 2 {
		return nil, fmt.Errorf("'%s' has no digest: 'sluice keys new %s' makes a key and its line", parts[0], parts[0])
	}
	digest, ok := strings.CutPrefix(parts[1], "sha256:")
	if n, err := hex.Decode(k.digest[:], []byte(digest[:min(len(digest), 64)])); !ok || err != nil || n != sha256.Size || len(digest) != 64 {
		return nil, fmt.Errorf("the digest of '%s' is not sha256: and 64 hexadecimal digits", parts[0])
	}
	for _, part := range parts[2:] {
		name, value, _ := strings.Cut(part, "=")
		switch {
		case name == "tenant" && value != "" && printable(value):
			k.principal.Tenant = value
		case name == "groups" && value != "" && printable(value):
			k.principal.Groups = strings.Split(value, ",")
		case name == "expires":
			end, err := time.Parse(time.DateOnly, value)
			if err != nil {
				if end, err = time.Parse(time.RFC3339, value); err != nil {
					return nil, fmt.Errorf("'%s' is neither a day (2027-01-31) nor a time (2027-01-31T08:00:00Z)", clean(value))
				}
			}
			k.expires = end
		default:
			return nil, fmt.Errorf("'%s' is not tenant=, groups= or expires= with a value", clean(name))
		}
	}
	return k, nil
}

// find gives the key's line; nil: there is none.
func (k keys) find(digest *[sha256.Size]byte) *apiKey {
	for _, key := range k[binary.LittleEndian.Uint64(digest[:])] {
		if subtle.ConstantTimeCompare(key.digest[:], digest[:]) == 1 {
			return key
		}
	}
	return nil
}
