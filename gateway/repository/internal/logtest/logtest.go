// Package logtest keeps what is logged, for the tests of gateway/repository's folders.
package logtest

import (
	"bytes"
	"sync"
)

// Book is a log that tests read. The zero value is empty; its methods are safe for
// concurrent use.
type Book struct {
	mu   sync.Mutex
	text bytes.Buffer // mu
}

// Write appends to the log.
func (b *Book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is all that was written.
func (b *Book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
