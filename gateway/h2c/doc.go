// Package h2c lets a client of HTTP/1.1 go over to HTTP/2 on a plain-text connection, by
// "Upgrade: h2c" as RFC 7540, 3.2 has it. RFC 9113 has no such way any more, but curl
// --http2 and older libraries still ask for it.
//
// A server that speaks HTTP/2 by prior knowledge alone learns the upgrade from here:
// Accept answers 101 and gives the bytes that such a server would have read had the
// client sent its request as stream 1, and Listener does so for servers that only take
// connections. The request's block uses no table, so the client's own blocks follow it;
// the settings of HTTP2-Settings stand in front of those that the client's first
// SETTINGS frame has, so that they are acknowledged together, as the client expects.
//
// A request that a server need not upgrade (RFC 7540, 3.2: it may ignore the field), one
// whose body is chunked or above MaxBody, one that a proxy has sent on, and whatever is not plain HTTP/1.1, comes back
// as it was sent.
//
// Nothing here has a goroutine; deadlines are the caller's to set.
package h2c
