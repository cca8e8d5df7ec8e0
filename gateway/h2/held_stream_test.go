package h2

import (
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// slow is a streaming service that reads nothing before it is told to, and then all. Its
// answer is how many bytes that were.
func slow(read <-chan struct{}) *grpc.ServiceDesc {
	serve := func(_ any, stream grpc.ServerStream) error {
		select {
		case <-read:
		case <-stream.Context().Done():
		}
		sum := 0
		for {
			var b []byte
			err := stream.RecvMsg(&b)
			if err == io.EOF {
				out := []byte(itoa(sum))
				return stream.SendMsg(&out)
			}
			if err != nil {
				return err
			}
			sum += len(b)
		}
	}
	return &grpc.ServiceDesc{ServiceName: "test.Slow", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Sum", ServerStreams: true, ClientStreams: true, Handler: serve}}}
}

// TestMessagesThatWaitForTheirReader sees that half a message is not held against a client
// whose earlier messages nobody reads: its window may be full. Once they are read, it is.
func TestMessagesThatWaitForTheirReader(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		f := start(t, func(c *Config) {
			manyPings(c)
			c.StreamWindow, c.WriteTimeout = 1<<16, 200*time.Millisecond
		})
		read := make(chan struct{})
		f.s.deps.Codec = raw{}
		f.s.RegisterService(slow(read), struct{}{})
		c := hello(t, f)
		c.headers(1, false, request(":path", "/test.Slow/Sum")...)
		half := message(strings.Repeat("x", 60000))
		all := append(message("first"), half...)
		for _, b := range [][]byte{all[:16000], all[16000:32000]} {
			c.must(c.fr.WriteData(1, false, b))
		}
		tick := time.NewTicker(20 * time.Millisecond)
		for range 50 {
			<-tick.C
			if got := c.ping(); got != "alive" {
				t.Fatal(got)
			}
		}
		tick.Stop()
		if a := c.seen[1]; a != nil && (a.ended || a.reset != "") {
			t.Fatalf("while nobody read: %s %s", a, a.reset)
		}
		close(read)
		want := "4: the message did not arrive in time"
		if goesOn {
			want = "0 60005"
			c.must(c.fr.WriteData(1, false, all[32000:48000]))
			c.must(c.fr.WriteData(1, true, all[48000:]))
		}
		if got := c.outcome(1); got != want {
			t.Errorf("goes on %v: got %q, want %q", goesOn, got, want)
		}
	}
}
