// Package memorytest has memory for tests of front ends.
package memorytest

import (
	"math"

	"github.com/sluice-serve/sluice/infer"
)

// Plenty is what memory without bounds says of itself; the Body of the test's own memory
// stands beside it.
type Plenty struct{}

// Most is without bound.
func (Plenty) Most() int64 { return math.MaxInt64 }

// Fits says that there will be room.
func (Plenty) Fits(int64) error { return nil }

// Aside has no other memory.
func (Plenty) Aside([]byte) (*infer.Buffer, error) {
	return nil, infer.Errorf(infer.Unavailable, "there is no other memory")
}

// Scarce says no.
func (Plenty) Scarce() bool { return false }

// Pressed says no.
func (Plenty) Pressed() bool { return false }
