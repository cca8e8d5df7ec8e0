package h1

import (
	"net"
	"testing"
)

// A server that was stopped before it served ends at once, whoever closed the listener.
func TestServeAfterStop(t *testing.T) {
	for name, closed := range map[string]bool{"open": false, "closed": true} {
		t.Run(name, func(t *testing.T) {
			s := resting()
			if err := s.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			if closed {
				_ = l.Close() // as the stopped server's owner did
			}
			if err := s.Serve(l, nil); err != nil {
				t.Error(err)
			}
			if err := l.Close(); err == nil {
				t.Error("the listener was left open")
			}
		})
	}
}
