package h1

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// unreadBody is a request with a body that echo does not read, and what ends it.
type unreadBody struct{ name, head, piece, end string }

func unreadBodies(size int) []unreadBody {
	const post = "POST /unread HTTP/1.1\r\nHost: x\r\n"
	piece := strings.Repeat("x", 1<<20)
	return []unreadBody{
		{"Content-Length", fmt.Sprintf("%sContent-Length: %d\r\n\r\n", post, size), piece, ""},
		{"chunked", post + "Transfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece), "0\r\n\r\n"},
	}
}

// TestAnswerIsReadAfterTheBody: a client that sends all of a large body before it reads gets its
// answer though nobody reads the body, and the connection ends without a reset.
func TestAnswerIsReadAfterTheBody(t *testing.T) {
	addr, _, _ := start(t, nil)
	const pieces = 48
	for _, b := range unreadBodies(pieces << 20) {
		t.Run(b.name, func(t *testing.T) {
			nc := dial(t, addr)
			defer nc.Close()
			if _, err := io.WriteString(nc, b.head); err != nil {
				t.Fatal(err)
			}
			for i := range pieces {
				if _, err := io.WriteString(nc, b.piece); err != nil {
					t.Fatalf("after %d MiB: %v", i, err)
				}
			}
			if _, err := io.WriteString(nc, b.end); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(nc)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || string(body) != "unread" || !resp.Close {
				t.Errorf("got %q, %v, closes: %t", body, err, resp.Close)
			}
			if _, err := r.ReadByte(); err != io.EOF {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}

// TestLingeringEnds: who never stops sending, or sends nothing more and stays, is closed by its time,
// and by the server's end.
func TestLingeringEnds(t *testing.T) {
	for name, row := range map[string]struct {
		idle, whole time.Duration
		sends, stop bool
	}{
		"sends on":            {time.Minute, 200 * time.Millisecond, true, false},
		"stays":               {200 * time.Millisecond, time.Minute, false, false},
		"sends on, and stops": {time.Minute, time.Minute, true, true},
		"stays, and stops":    {time.Minute, time.Minute, false, true},
	} {
		for _, b := range unreadBodies(1 << 40) {
			t.Run(name+", "+b.name, func(t *testing.T) {
				addr, _, s := start(t, nil)
				s.lingerIdle, s.lingerTime = row.idle, row.whole
				nc := dial(t, addr)
				defer nc.Close()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, err := io.WriteString(nc, b.head)
					for err == nil && row.sends {
						_, err = io.WriteString(nc, b.piece)
					}
				}()
				if _, err := http.ReadResponse(bufio.NewReader(nc), nil); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if row.stop {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					if err := s.Shutdown(ctx); err != nil {
						t.Error(err)
					}
				}
				until(t, func() bool { return len(s.conns.All()) == 0 })
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it took %v", took)
				}
				<-ended
			})
		}
	}
}
