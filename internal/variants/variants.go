// Package variants runs a package's tests once for each variant of what they test, as for
// each transport under one protocol. Tests that don't depend on it, which is seen in the
// first run, are left out of the others.
package variants

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// Of is the variants of T that a package's tests run with. The zero value has none.
type Of[T any] struct {
	all []T

	mu   sync.Mutex
	at   int
	used map[string]bool // by names of tests without those of their parts
}

// New gives variants, of which there must be one at least.
func New[T any](all ...T) *Of[T] { return &Of[T]{all: all, used: map[string]bool{}} }

// Now is the variant of this run, on which the test t depends from now on. Every test that
// depends on it must ask.
func (o *Of[T]) Now(t testing.TB) T {
	name, _, _ := strings.Cut(t.Name(), "/")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used[name] = true
	return o.all[o.at]
}

// pattern is what -test.run says to have the tests that asked; "" when none did.
func (o *Of[T]) pattern() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for name := range o.used {
		names = append(names, regexp.QuoteMeta(name))
	}
	if len(names) == 0 {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// Main is the body of a TestMain: it runs the tests with each variant, and ends the process.
// Tests that passed fail by an error of after, as leak.Find's.
func (o *Of[T]) Main(m *testing.M, after func() error) {
	os.Exit(o.run(m.Run, after))
}

func (o *Of[T]) run(tests func() int, after func() error) int {
	for i, v := range o.all {
		if i > 0 {
			pattern := o.pattern()
			if pattern == "" {
				break
			}
			if err := flag.Set("test.run", pattern); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		o.mu.Lock()
		o.at = i
		o.mu.Unlock()
		fmt.Println("variant:", v)
		if code := tests(); code != 0 {
			return code
		}
	}
	if err := after(); err != nil {
		fmt.Fprintln(os.Stderr, "after all tests:", err)
		return 1
	}
	return 0
}
