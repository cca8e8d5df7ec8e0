package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// driveHTTP sends request again and again on one connection until r has enough.
func driveHTTP(ctx context.Context, address string, request []byte, r *record) error {
	for {
		conn, err := dial(ctx, address)
		if err != nil {
			return err
		}
		more, err := driveConnection(conn, request, r)
		if errClose := conn.Close(); err == nil {
			err = errClose
		}
		if err != nil || !more {
			return err
		}
	}
}

// driveConnection sends requests until r has enough or the connection ends; more says
// that another one is wanted. A connection that ends under a request makes that one
// fail; the first of a connection must succeed.
func driveConnection(conn net.Conn, request []byte, r *record) (more bool, err error) {
	in := bufio.NewReaderSize(conn, 64<<10)
	for n := 0; ; n++ {
		sent := time.Now()
		var answer answer
		_, err := conn.Write(request)
		if err == nil {
			answer, err = readAnswer(in)
		}
		if err != nil {
			if n == 0 {
				return false, err
			}
			return r.add(sent, time.Now(), "connection: "+reason(err)), nil
		}
		if more := r.add(sent, time.Now(), answer.failure); !more || answer.last {
			return more, nil
		}
	}
}

// reason is an error without the addresses, which differ with each connection.
func reason(err error) string {
	var e *net.OpError
	if errors.As(err, &e) {
		return e.Op + ": " + e.Err.Error()
	}
	return err.Error()
}

// dial connects with the deadline of ctx on all reads and writes.
func dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn, nil
}

// answer is one response: failure is its status line and the begin of its body where it
// is no 200, and last says that the server closes the connection after it.
type answer struct {
	failure string
	last    bool
}

// readAnswer takes one response with a Content-Length off the connection.
func readAnswer(in *bufio.Reader) (a answer, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	status := ""
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		status = string(bytes.TrimSpace(line))
	}
	length := -1
	for {
		line, err = in.ReadSlice('\n')
		if err != nil {
			return a, err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if len(name) == len("content-length") && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return a, err
			}
		}
		if len(name) == len("connection") && bytes.EqualFold(name, []byte("connection")) {
			a.last = bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
		}
	}
	if length < 0 {
		return a, fmt.Errorf("an answer without Content-Length: %q", status)
	}
	if status != "" {
		body, err := in.Peek(min(length, 300))
		if err != nil {
			return a, err
		}
		status += " " + string(body)
	}
	a.failure = status
	_, err = in.Discard(length)
	return a, err
}
