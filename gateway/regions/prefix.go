package regions

import (
	"errors"
	"fmt"
	"strings"
)

// principalMark stands for the caller's principal in a prefix of keys.
const principalMark = "{principal}"

// CheckPrefix says what is wrong with one of Config.Prefixes; nil: nothing.
func CheckPrefix(prefix string) error {
	before, after, marked := cutPrefix(prefix)
	switch {
	case strings.Trim(prefix, "/") == "" || strings.Contains(before+after, "/"):
		return fmt.Errorf("'%s' is no beginning of a name", prefix)
	case strings.ContainsAny(before+after, "{}"):
		return fmt.Errorf("'%s': %s may stand in it once, and no other braces", prefix, principalMark)
	case marked && (after == "" || staysInName(after[0]) || after[0] == '%'):
		return fmt.Errorf("'%s': behind %s must stand a character that ends the principal's name, such as '_'", prefix,
			principalMark)
	}
	return nil
}

// checkPrefixes says of all prefixes which ones let a caller use what another one reserves
// for a principal.
func checkPrefixes(all []string) (err error) {
	for i, p := range all {
		err = errors.Join(err, CheckPrefix(p))
		before, _, marked := cutPrefix(p)
		for _, q := range all[:i] {
			other, _, also := cutPrefix(q)
			meet := strings.HasPrefix(before, other) || strings.HasPrefix(other, before)
			if p != q && (marked || also) && meet {
				err = errors.Join(err, fmt.Errorf("'%s' and '%s': what stands before %s must differ from how any other prefix begins",
					q, p, principalMark))
			}
		}
	}
	return err
}

// cutPrefix is what a prefix has before and behind the principal.
func cutPrefix(prefix string) (before, after string, marked bool) {
	return strings.Cut(strings.TrimLeft(prefix, "/"), principalMark)
}

// prefixFor is how keys begin that a prefix allows a principal, "" for none; ok is false
// where it allows nothing. Of two principals neither's begins the other's: a character that
// is in no escaped name stands behind it.
func prefixFor(prefix, principal string) (begins string, ok bool) {
	before, after, marked := cutPrefix(prefix)
	if !marked {
		return before, true
	}
	return before + escapeName(principal) + after, principal != ""
}

// escapeName writes a principal's name as part of a key: letters, digits and ".-@:" as they
// are, other bytes as %XX.
func escapeName(name string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(name))
	for i := range len(name) {
		if c := name[i]; staysInName(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

func staysInName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(".-@:", c) >= 0
}
