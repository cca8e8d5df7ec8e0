package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/infer"
)

// handler carries calls between net/http and the API.
type handler struct {
	api     *API
	timeout time.Duration // Config.BodyTimeout
	rate    int64         // Config.MinRate
	calls   sync.Pool     // of *httpCall
	large   largeWrites

	lingering lingerings
}

// httpCall is the transport's part of one call.
type httpCall struct {
	Call
	header fields
	body   progress
	out    pieces
	reply  Reply
	length [1]string // Content-Length
	json   [1]string // Inference-Header-Content-Length
}

// connKey is the key of *connInfo in a connection's context.
type connKey struct{}

// connInfo is what is known of a connection.
type connInfo struct {
	remote netip.AddrPort
	unix   bool
	peer   infer.Peer
	resets resets
}

// connContext fits http.Server.ConnContext.
func connContext(ctx context.Context, c net.Conn) context.Context {
	info := &connInfo{resets: resets{conn: c, left: resetBurst}}
	info.remote, info.unix, info.peer = listen.Remote(c.RemoteAddr())
	return context.WithValue(ctx, connKey{}, info)
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, ok := h.calls.Get().(*httpCall)
	if !ok {
		c = &httpCall{}
	}
	c.header.h = r.Header
	c.Call = Call{Method: r.Method, Path: r.URL.EscapedPath(), Header: &c.header, Length: r.ContentLength}
	info, ok := r.Context().Value(connKey{}).(*connInfo)
	if ok {
		c.Remote, c.Unix, c.Peer = info.remote, info.unix, info.peer
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		c.Certificate = r.TLS.PeerCertificates[0]
	}
	c.body = progress{r: r.Body, w: w, timeout: h.timeout, rate: h.rate}
	c.Body = &c.body
	c.out = pieces{w: w, timeout: h.timeout, rate: h.rate}
	c.Stream = &c.out
	h.api.Serve(r.Context(), &c.Call, &c.reply)
	c.body.finish(r.ContentLength)
	var broken error
	lingers := false
	if c.reply.Streamed {
		c.out.finish()
	} else {
		lingers = c.lingers(r) && openLinger(w, r)
		broken = h.write(w, c)
	}
	if ok && r.ProtoMajor == 2 && r.Context().Err() != nil {
		info.resets.count(time.Now())
	}
	c.reply.Release()
	c.Call, c.header.h, c.body, c.out = Call{}, nil, progress{}, pieces{}
	h.calls.Put(c)
	if lingers && broken == nil {
		h.lingering.linger(w, r)
	}
	if broken != nil {
		panic(http.ErrAbortHandler) // which net/http takes for the end of the connection, or the stream of HTTP/2
	}
}

// write sends the reply. An error is that not all of it was.
func (h *handler) write(w http.ResponseWriter, c *httpCall) error {
	r, header := &c.reply, w.Header()
	header["Content-Type"] = contentType(r.ContentType)
	if r.Source == nil {
		c.length[0] = strconv.FormatInt(r.Length, 10)
		header["Content-Length"] = c.length[:]
	}
	if r.HeaderLength >= 0 {
		c.json[0] = strconv.FormatInt(r.HeaderLength, 10)
		header["Inference-Header-Content-Length"] = c.json[:]
	}
	for _, f := range r.Fields {
		header.Set(f.Name, f.Value)
	}
	w.WriteHeader(r.Status)
	if r.Source != nil || r.Length > coalesce {
		return h.writeLarge(w, r)
	}
	for _, chunk := range r.Chunks {
		if _, err := w.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// pieces is an answer that is sent piece by piece.
type pieces struct {
	w       http.ResponseWriter
	timeout time.Duration
	rate    int64
}

// Begin implements Streamer.
func (p *pieces) Begin(h *Head) error {
	header := p.w.Header()
	header.Set("Content-Type", h.ContentType)
	for _, f := range h.Fields {
		header.Set(f.Name, f.Value)
	}
	p.w.WriteHeader(h.Status)
	return p.flush()
}

// Stream implements Streamer.
func (p *pieces) Stream(b []byte) error {
	_ = http.NewResponseController(p.w).SetWriteDeadline(deadline(p.timeout, int64(len(b)), p.rate)) // an old transport without deadlines still writes
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	return p.flush()
}

func (p *pieces) flush() error { return http.NewResponseController(p.w).Flush() }

// finish takes the last write's deadline away.
func (p *pieces) finish() { _ = http.NewResponseController(p.w).SetWriteDeadline(time.Time{}) }

// deadline is when so many bytes must be through.
func deadline(timeout time.Duration, bytes, rate int64) time.Time {
	return time.Now().Add(timeout + time.Duration(bytes/rate)*time.Second)
}

// contentType gives the shared value of a field: net/http only reads it.
func contentType(t string) []string {
	switch t {
	case typeJSON:
		return []string{typeJSON}
	case typeBinary:
		return []string{typeBinary}
	}
	return []string{t}
}

// fields shows a net/http header. Its names are canonical there, whatever was sent.
type fields struct{ h http.Header }

// Get implements Header.
func (f *fields) Get(name string) string {
	if v := f.h[name]; len(v) > 0 {
		return v[0]
	}
	return f.h.Get(name)
}

// Count implements Header.
func (f *fields) Count(name string) int { return len(f.h.Values(name)) }

// Each implements Header.
func (f *fields) Each(visit func(name, value string) bool) {
	for name, v := range f.h {
		if len(v) > 0 && !visit(name, v[0]) {
			return
		}
	}
}

// progress is a body that must arrive at a least rate: the connection's read deadline
// moves on with what has come.
type progress struct {
	r       io.Reader
	w       http.ResponseWriter
	timeout time.Duration
	rate    int64
	read    int64
	start   time.Time
	renew   int64 // read count at which the deadline moves
	armed   bool
	ended   bool
	failed  bool
}

// Read implements io.Reader.
func (p *progress) Read(b []byte) (int, error) {
	if !p.armed && p.start.IsZero() || p.armed && p.read >= p.renew {
		p.arm()
	}
	n, err := p.r.Read(b)
	p.read += int64(n)
	switch err {
	case nil:
	case io.EOF:
		p.ended = true
		p.lift()
	default:
		p.failed = true // the deadline stays: net/http reads on to the body's end
	}
	return n, err
}

// finish readies the connection for what net/http does behind the handler: it reads
// away what is left of a body, for which the client has as long as for any step.
func (p *progress) finish(length int64) {
	if length == 0 || p.ended {
		p.lift()
	} else if !p.failed {
		_ = http.NewResponseController(p.w).SetReadDeadline(time.Now().Add(p.timeout))
	}
}

func (p *progress) arm() {
	if p.start.IsZero() {
		p.start = time.Now()
	}
	at := p.start.Add(p.timeout + time.Duration(p.read/p.rate)*time.Second)
	p.armed = http.NewResponseController(p.w).SetReadDeadline(at) == nil
	p.renew = p.read + max(p.rate*int64(p.timeout/time.Second)/4, 4096)
}

// lift takes the deadline away: the read that watches for the client's leaving has none.
func (p *progress) lift() {
	if p.armed {
		p.armed = false
		_ = http.NewResponseController(p.w).SetReadDeadline(time.Time{})
	}
}
