// Package leak fails tests that leave goroutines behind, on a busy machine too: goleak
// itself gives them less than half a second to end.
package leak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines that were told to end may take.
const patience = 20 * time.Second

// Main is the body of a TestMain: it runs the tests, then cleanup, and ends the process.
// Tests that passed fail when goroutines are left.
func Main(m *testing.M, cleanup ...func()) {
	code := m.Run()
	if code == 0 {
		if err := Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left behind:", err)
			code = 1
		}
	}
	for _, f := range cleanup {
		f()
	}
	os.Exit(code)
}

// Find waits until no goroutine is left but the caller's and those that options ignore.
// Its error tells of those that stay.
func Find(options ...goleak.Option) error {
	for end := time.Now().Add(patience); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}
