package h1

import (
	"context"
	"io"
	"net"
	"testing"
	"time"
)

// quick answers without a cost of its own.
type quick struct {
	sink [256]byte
	body [][]byte
}

// Light implements Handler: each request has a goroutine.
func (*quick) Light(*Request) bool { return false }

func (q *quick) Serve(_ context.Context, r *Request, a *Answer) (later bool) {
	for {
		if _, err := r.Body.Read(q.sink[:]); err != nil {
			break
		}
	}
	a.Status, a.Length = 200, int64(len(q.body[0]))
	a.Fields = append(a.Fields, Field{"Content-Type", "application/json"})
	a.Chunks = append(a.Chunks, q.body...)
	return false
}

func (q *quick) Written(*Answer) {}

// repeat is a connection on which one request comes again and again.
type repeat struct {
	net.Conn
	request []byte
	left    int
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	r.left--
	return copy(p, r.request), nil
}

func (r *repeat) Write(p []byte) (int, error)     { return len(p), nil }
func (r *repeat) SetReadDeadline(time.Time) error { return nil }
func (r *repeat) RemoteAddr() net.Addr            { return &net.TCPAddr{} }

// BenchmarkRequest is a small request and its answer, without the network.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct{ name, other string }{{"same head", ""}, {"other heads", "GET /v2 HTTP/1.1\r\nHost: localhost:8000\r\n\r\n"}} {
		b.Run(c.name, func(b *testing.B) {
			s := resting()
			s.handler = &quick{body: [][]byte{make([]byte, 200)}}
			request := "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: bench\r\nAccept: */*\r\n" +
				"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n" + string(make([]byte, 100)) + c.other
			nc := &repeat{request: []byte(request), left: b.N}
			conn := newConn(s, nc, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for {
				if _, err := conn.one(); err == io.EOF {
					return
				} else if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
