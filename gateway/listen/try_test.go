package listen

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// pair are the two ends of a TCP connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// A Trier writes all, or says how much a peer that reads nothing has let through.
func TestTrier(t *testing.T) {
	client, server := pair(t)
	try := NewTrier(server)
	if n, err := try.Write([]byte("ab"), []byte("c"), []byte("def")); n != 6 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(client, got); err != nil || string(got) != "abcdef" {
		t.Fatalf("%q, %v", got, err)
	}
	piece := bytes.Repeat([]byte("x"), 1<<20)
	total := 0
	for range 1 << 10 {
		n, err := try.Write(piece)
		if err != nil {
			t.Fatal(err)
		}
		if total += n; n < len(piece) {
			break
		}
	}
	if n, err := try.Write(piece); n != 0 || err != nil {
		t.Fatalf("a full socket took %d bytes, %v", n, err)
	}
	if n, err := io.CopyN(io.Discard, client, int64(total)); n != int64(total) {
		t.Errorf("%d of %d bytes came: %v", n, total, err)
	}
	client.Close()
	for err := error(nil); err == nil; {
		_, err = try.Write(piece)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if NewTrier(a) != nil {
		t.Error("a pipe has no socket")
	}
}

func TestRest(t *testing.T) {
	for n, want := range []string{"abcdef", "bcdef", "cdef", "def", "ef", "f", ""} {
		rest := Rest([][]byte{[]byte("ab"), []byte("c"), []byte("def")}, n)
		if got := string(bytes.Join(rest, nil)); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// A Taker reads what is there without a word, and tells before it waits; deadlines and the
// peer's end are those of its connection.
func TestTaker(t *testing.T) {
	client, server := pair(t)
	waits := 0
	take := NewTaker(server, func() {
		if waits++; waits > 1 {
			return
		}
		if _, err := client.Write([]byte("abcdef")); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, 4)
	if n, err := take.Read(got); n != 4 || err != nil || string(got) != "abcd" || waits != 1 {
		t.Fatalf("%d %q %v after %d waits", n, got, err, waits)
	}
	if n, err := take.Read(got); n != 2 || err != nil || waits != 1 {
		t.Fatalf("%d %v after %d waits: what is there takes none", n, err, waits)
	}
	if err := server.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := take.Read(got); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d %v at the deadline", n, err)
	}
	if err := server.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if n, err := take.Read(got); n != 0 || err != io.EOF {
		t.Fatalf("%d %v at the end", n, err)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if NewTaker(a, func() {}) != nil {
		t.Error("a pipe has no socket")
	}
}
