package auth

import (
	"fmt"
	"strings"
)

// glob matches names: '*' stands for any run of characters, '?' for one byte. The zero
// value matches "" alone.
type glob struct {
	pattern string
	plain   bool // no wildcard
}

func newGlob(pattern string) (glob, error) {
	if len(pattern) > 1024 || strings.Count(pattern, "*") > 16 {
		return glob{}, fmt.Errorf("the pattern is too long")
	}
	return glob{pattern, !strings.ContainsAny(pattern, "*?")}, nil
}

// match takes time linear in both for each '*', and allocates nothing.
func (g glob) match(name string) bool {
	if g.plain {
		return g.pattern == name
	}
	p, star, mark := 0, -1, 0
	for i := 0; i < len(name); {
		switch {
		case p < len(g.pattern) && g.pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(g.pattern) && (g.pattern[p] == '?' || g.pattern[p] == name[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(g.pattern) && g.pattern[p] == '*' {
		p++
	}
	return p == len(g.pattern)
}

func anyMatch(globs []glob, name string) bool {
	for i := range globs {
		if globs[i].match(name) {
			return true
		}
	}
	return false
}
