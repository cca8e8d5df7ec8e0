package leak

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A goroutine that takes longer than goleak waits is none that is left; one that stays is.
func TestFind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	end := make(chan struct{})
	go stay(end)
	time.AfterFunc(1500*time.Millisecond, func() { close(end) })
	if err := goleak.Find(before); err == nil || !strings.Contains(err.Error(), "stay") {
		t.Fatalf("goleak found %v", err)
	}
	if err := Find(before); err != nil {
		t.Error(err)
	}
}

func stay(end <-chan struct{}) { <-end }
