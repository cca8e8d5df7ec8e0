package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// served is a server of an API on loopback.
func served(t *testing.T, c Config, api *API) (s *Server, addr string) {
	t.Helper()
	s = NewServer(c, api, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Add(l)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// TestTooLargeIsRead: over both transports a client that sends all of a body which never fits before it
// reads gets the refusal, and so does one that sends in chunks.
func TestTooLargeIsRead(t *testing.T) {
	api, bodies := onArena(t, 4)
	const size = 48 << 20
	head := binaryHead(size)
	for _, transport := range []Transport{TransportOwn, TransportLibrary} {
		_, addr := served(t, Config{Transport: transport}, api)
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %t", transport, chunked), func(t *testing.T) {
				nc, err := net.Dial("tcp", addr)
				if err != nil {
					t.Fatal(err)
				}
				defer nc.Close()
				fields := fmt.Sprintf("Inference-Header-Content-Length: %d\r\n", len(head))
				if err := sendAll(nc, fields, head, size, chunked); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != 400 || resp.Header.Get(ReasonHeader) != "too_large" || !resp.Close {
					t.Errorf("%d, %v, closes %t: %s, %v", resp.StatusCode, resp.Header, resp.Close, text, err)
				}
			})
		}
	}
	if held := bodies.InUse(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// sendAll sends a request with a body of zeros behind head, and reads nothing.
func sendAll(nc net.Conn, fields, head string, size int, chunked bool) error {
	out := bufio.NewWriter(nc)
	length := fmt.Sprintf("Content-Length: %d", len(head)+size)
	if chunked {
		length = "Transfer-Encoding: chunked"
	}
	fmt.Fprintf(out, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n%s%s\r\n\r\n", fields, length)
	piece := func(p string) {
		if chunked {
			p = fmt.Sprintf("%x\r\n%s\r\n", len(p), p)
		}
		_, _ = out.WriteString(p) // Flush says so
	}
	piece(head)
	zeros := strings.Repeat("\x00", 1<<20)
	for range size >> 20 {
		piece(zeros)
	}
	if chunked {
		_, _ = out.WriteString("0\r\n\r\n") // likewise
	}
	return out.Flush()
}

// TestLibraryLingeringEnds: net/http's connections whose clients never stop, or stay, are closed by their
// time, and by the server's end.
func TestLibraryLingeringEnds(t *testing.T) {
	api, _ := onArena(t, 4)
	for name, row := range map[string]struct {
		idle, whole time.Duration
		sends, stop bool
	}{
		"sends on":            {time.Minute, 200 * time.Millisecond, true, false},
		"stays":               {200 * time.Millisecond, time.Minute, false, false},
		"sends on, and stops": {time.Minute, time.Minute, true, true},
		"stays, and stops":    {time.Minute, time.Minute, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, addr := served(t, Config{Transport: TransportLibrary}, api)
			s.handler.lingering.idle, s.handler.lingering.whole = row.idle, row.whole
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, err := io.WriteString(nc, "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n"+
					"Inference-Header-Content-Length: 0\r\n\r\n")
				zeros := make([]byte, 1<<20)
				for err == nil && row.sends {
					_, err = nc.Write(zeros)
				}
			}()
			r := bufio.NewReader(nc)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != 400 {
				t.Fatal(resp, err)
			}
			began := time.Now()
			if row.stop {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if err := s.Shutdown(ctx); err != nil {
					t.Error(err)
				}
			}
			_, _ = io.Copy(io.Discard, r) // to the end, or a reset
			<-ended
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
