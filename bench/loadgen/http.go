package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"
)

// driveHTTP sends request again and again on one connection until r has enough.
func driveHTTP(ctx context.Context, address string, request []byte, r *record) error {
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 64<<10)
	for {
		sent := time.Now()
		if _, err := conn.Write(request); err != nil {
			return err
		}
		failure, err := readAnswer(in)
		if err != nil {
			return err
		}
		if !r.add(sent, time.Now(), failure) {
			return nil
		}
	}
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

// readAnswer takes one response with a Content-Length off the connection; failure is
// its status line and the begin of its body where it is no 200.
func readAnswer(in *bufio.Reader) (failure string, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return "", err
	}
	status := ""
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		status = string(bytes.TrimSpace(line))
	}
	length := -1
	for {
		line, err = in.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		if len(line) <= 2 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if len(name) == len("content-length") && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", err
			}
		}
	}
	if length < 0 {
		return "", fmt.Errorf("an answer without Content-Length: %q", status)
	}
	if status != "" {
		body, err := in.Peek(min(length, 300))
		if err != nil {
			return "", err
		}
		status += " " + string(body)
	}
	_, err = in.Discard(length)
	return status, err
}
