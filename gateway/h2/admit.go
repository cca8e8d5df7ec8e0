package h2

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/gateway/lifetime"
)

// turnAway resets a stream that becomes no call.
func (c *conn) turnAway(h head, code errCode) error {
	if err := c.guard.reset(); err != nil {
		return err
	}
	if !h.has(flagEndStream) {
		c.late.add(h.stream, c.lastID)
	}
	return c.control(appendReset, h.stream, code)
}

// malformed resets a call whose client breaks the rules of HTTP (RFC 9113, 8.1.1).
func (c *conn) malformed(st *Stream) error {
	c.mu.Lock()
	if !st.gone {
		st.remoteEnd.Store(true) // where it ends its stream; else nothing more is read
		c.resetLocked(st, codeProtocol)
	}
	c.mu.Unlock()
	c.abandon(st, context.Canceled)
	c.news = true
	return c.guard.reset()
}

// closed takes HEADERS and DATA on a stream that the client has ended, or whose call we
// have (RFC 9113, 5.1).
func (c *conn) closed(h head) error {
	if !c.late.has(h.stream) {
		c.forgetStale()
	}
	if c.late.has(h.stream) { // it was on its way when we ended the call
		if h.has(flagEndStream) {
			c.late.forget(h.stream)
		}
		if h.kind == frameData && h.length > 0 {
			return nil
		}
		return c.guard.control()
	}
	c.mu.Lock()
	st := c.streams.get(h.stream)
	if st != nil {
		c.resetLocked(st, codeStreamClosed)
	}
	c.mu.Unlock()
	switch {
	case st != nil:
		st.End(context.Canceled)
		c.news = true
		return c.guard.reset()
	case h.kind == frameData:
		if err := c.guard.reset(); err != nil {
			return err
		}
		return c.control(appendReset, h.stream, codeStreamClosed)
	case c.called == (c.lastID+1)/2: // every stream was opened, this one too
		return &connError{codeStreamClosed, "HEADERS on a closed stream"}
	}
	return &connError{codeProtocol, "a stream below the last one"}
}

// abort is an answer whose HTTP status is not 200: the request is no call. The texts
// are grpc-go's, so that a client reads the same from both.
type abort struct {
	http int
	*status.Status
}

func (a *abort) Error() string { return a.Message() }

func refusal(http int, code codes.Code, format string, args ...any) error {
	return &abort{http, status.Newf(code, format, args...)}
}

// admit finds the method and asks it.
func (c *conn) admit(st *Stream) (err error) {
	hd := st.head
	late := c.headers.timed && c.headers.timeout <= 0
	if hd.admitted == nil || late {
		if hd.admitted, err = c.find(hd, late); err != nil {
			return err
		}
	}
	m := hd.admitted
	st.method = m
	if r := c.headers; r.timed {
		d := r.timeout
		if m.hot != nil {
			d = lifetime.Ahead(d)
		}
		st.SetTimeout(d)
	}
	switch {
	case m.hot != nil:
		err = st.begin()
	case m.served.stream != nil:
		if err := c.admitStream(st); err != nil {
			return err
		}
		c.dispatch(st)
	}
	return err
}

// find is the method that a header leads to, if nothing is wrong with the call; late: its time
// is up.
func (c *conn) find(hd *header, late bool) (*method, error) {
	switch {
	case hd.large:
		return nil, status.Errorf(codes.ResourceExhausted, "headers larger than %d bytes", c.s.cfg.MaxHeaderBytes)
	case hd.hosts > 1:
		authorities := 0
		if hd.authority != "" {
			authorities = 1
		}
		return nil, refusal(400, codes.Internal, "num values of :authority: %d, num values of host: %d, both must only have 1 value as per HTTP/2 spec",
			authorities, hd.hosts)
	case !grpcType(hd.contentType):
		return nil, refusal(415, codes.InvalidArgument, "invalid gRPC request content-type %q", hd.contentType)
	case hd.refused != "":
		return nil, refusal(400, codes.Internal, "%s", hd.refused)
	case hd.authority == "" && hd.hosts == 0:
		return nil, refusal(400, codes.Internal, "no host or :authority header present")
	case hd.method != "POST":
		return nil, refusal(405, codes.Internal, "Received a HEADERS frame with :method %q which should be POST", hd.method)
	case late:
		return nil, status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	}
	m := c.s.methods[hd.path]
	if m == nil {
		return nil, c.s.unknown(hd.path)
	}
	if hd.encoding != "" && hd.encoding != "identity" && encoding.GetCompressor(hd.encoding) == nil {
		return nil, status.Errorf(codes.Unimplemented, "grpc: Decompressor is not installed for grpc-encoding %q", hd.encoding)
	}
	return m, nil
}

// admitStream counts a stream, or refuses it where too many bring no message: each costs
// its client a few bytes and us a goroutine.
func (c *conn) admitStream(st *Stream) error {
	if c.quiet.Load() >= int64(c.s.cfg.MaxQuiet) && c.s.quiet.Load() >= int64(c.s.cfg.MaxQuietAll) {
		return status.Errorf(codes.ResourceExhausted, "too many calls wait for their first message: %d on this connection", c.quiet.Load())
	}
	st.hush()
	return nil
}

// hush counts a call that is about to wait for its first message on a goroutine.
func (st *Stream) hush() {
	st.quiet.Store(true)
	st.c.quiet.Add(1)
	st.c.s.quiet.Add(1)
}

// spoke ends the count of a call: its first message came, or it is over.
func (st *Stream) spoke() {
	if st.quiet.Load() && st.quiet.Swap(false) {
		st.c.quiet.Add(-1)
		st.c.s.quiet.Add(-1)
	}
}

// grpcType says that a content type is gRPC's.
func grpcType(s string) bool {
	rest, ok := strings.CutPrefix(s, typeGRPC)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// unknown is grpc-go's answer for a path that leads nowhere.
func (s *Server) unknown(path string) error {
	service, name, ok := cutLast(strings.TrimPrefix(path, "/"))
	if !ok || !strings.HasPrefix(path, "/") {
		return status.Errorf(codes.Unimplemented, "malformed method name: %q", path)
	}
	if _, known := s.known[service]; !known {
		return status.Errorf(codes.Unimplemented, "unknown service %v", service)
	}
	return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", name, service)
}

func cutLast(s string) (before, after string, ok bool) {
	if i := strings.LastIndexByte(s, '/'); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return "", "", false
}
