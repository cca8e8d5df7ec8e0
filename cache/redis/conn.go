package redis

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"

	redisclient "github.com/redis/go-redis/v9"
)

// The bounds of one reply. The client library believes the lengths that a reply announces,
// and reads a line until it ends.
const (
	maxLine     = 64 << 10
	maxElements = 1 << 20 // of all lists of a reply
	maxLists    = 64      // in a reply; a list in a list in a list … is read by recursion
	maxReply    = maxValue + 4<<20
)

// boundReplies makes connections fail whose replies pass the bounds, or are not of the
// protocol's version 2, before the client library reads them.
func boundReplies(o *redisclient.Options) {
	dial := redisclient.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		b := bounded{Conn: c}
		if raw, ok := c.(syscall.Conn); ok {
			return &boundedSocket{b, raw}, nil
		}
		return &b, nil
	}
}

// bounded is a connection whose replies have bounds.
type bounded struct {
	net.Conn
	replies replies
	fault   error
}

// boundedSocket is bounded for a connection that the client library can look at.
type boundedSocket struct {
	bounded
	raw syscall.Conn
}

// SyscallConn implements syscall.Conn.
func (b *boundedSocket) SyscallConn() (syscall.RawConn, error) { return b.raw.SyscallConn() }

// Read implements net.Conn.
func (b *bounded) Read(p []byte) (int, error) {
	if b.fault != nil {
		return 0, b.fault
	}
	n, err := b.Conn.Read(p)
	if b.fault = b.replies.scan(p[:n]); b.fault != nil {
		return 0, b.fault
	}
	return n, err
}

// replies follows a stream of replies. The zero value is at its beginning. It is plain state.
// Source: the Redis serialization protocol, version 2.
type replies struct {
	line     []byte // of a line that has not ended
	skip     int64  // bytes of a text, with its end, that are still to come
	open     int64  // elements of the reply that are still to come
	size     int64  // bytes of the reply so far
	elements int64  // of its lists
	lists    int    // in it
}

// scan takes what came. An error is for good.
func (r *replies) scan(p []byte) error {
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, int64(len(p)))
			p, r.skip = p[n:], r.skip-n
			r.ended()
			continue
		}
		end := bytes.IndexByte(p, '\n')
		part := p[:end+1]
		if end < 0 {
			part = p
		}
		if r.size += int64(len(part)); len(r.line)+len(part) > maxLine || r.size > maxReply {
			return fmt.Errorf("a line of Redis has more than %d bytes", maxLine)
		}
		p = p[len(part):]
		if end < 0 {
			r.line = append(r.line, part...)
			return nil
		}
		if len(r.line) > 0 {
			part = append(r.line, part...)
			r.line = part[:0]
		}
		if err := r.element(bytes.TrimRight(part, "\r\n")); err != nil {
			return err
		}
		r.ended()
	}
	return nil
}

// ended forgets a reply that is over.
func (r *replies) ended() {
	if r.open == 0 && r.skip == 0 {
		r.size, r.elements, r.lists = 0, 0, 0
	}
}

// element takes the first line of an element.
func (r *replies) element(line []byte) error {
	r.open = max(r.open-1, 0)
	if len(line) == 0 {
		return fmt.Errorf("an empty line is no reply of Redis")
	}
	switch line[0] {
	case '+', '-', ':':
		return nil
	case '$', '*':
	default:
		return fmt.Errorf("%q begins no reply of Redis", line[0])
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if err != nil || n < -1 {
		return fmt.Errorf("'%.32q' is no length of Redis", line)
	}
	if n < 0 { // nothing
		return nil
	}
	if line[0] == '$' {
		if n > maxReply-r.size {
			return fmt.Errorf("a reply of Redis has more than %d bytes", int64(maxReply))
		}
		r.skip, r.size = n+2, r.size+n+2
		return nil
	}
	if n > maxElements-r.elements || r.lists >= maxLists {
		return fmt.Errorf("a reply of Redis has more than %d elements, or %d lists", maxElements, maxLists)
	}
	r.open, r.elements, r.lists = r.open+n, r.elements+n, r.lists+1
	return nil
}
