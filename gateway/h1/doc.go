// Package h1 is an HTTP/1.1 server transport (RFC 9112) for many small requests and for
// large bodies. A connection has one goroutine, which reads a request and runs its
// handler, or rests without one: see Handler.Light. An answer that the handler has at once
// it writes; one that comes later is written by whoever brings it, without blocking, while
// the goroutine waits for the next request. Bodies are read straight into the handler's
// memory, answers are written from where they lie, and pipelined requests are answered one
// by one.
//
// It serves the plain case: GET and POST with a Host, a Content-Length or chunked, in
// the clear. Everything else — HTTP/1.0 and HTTP/2, other methods, upgrades, doubtful
// framing — goes with its connection, and with what was read of it, to another server:
// see Handoff. So there is one place that knows what is unusual, and that is net/http.
//
// One goroutine for every four cores watches connections: for clients that leave while
// their request runs (epoll's EPOLLRDHUP, no read is needed for it), for requests on those
// that rest, and for those that are too slow.
package h1
