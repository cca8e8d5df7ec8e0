// Package h2 is an HTTP/2 server transport for gRPC, made for many small unary calls
// and for large messages: RFC 9113 and RFC 7541 as far as gRPC's clients use them, with
// windows, frames and every other thing that a peer may ask for bounded.
//
// A Server is a grpc.ServiceRegistrar, so services that were generated for grpc-go run
// on it unchanged. Methods given to Handle skip generated code: their messages are
// received straight into memory that the method chooses, and their answers are written
// from where they lie.
//
// Each connection has one goroutine, which reads; calls run on goroutines that are kept
// for the next call. Whoever has something to send appends it to the connection's
// output, and one of them writes all that has gathered: answers that are ready together
// leave in one system call. The reader never writes, so a peer that takes nothing can't
// keep it from reading.
//
// Lock order: Server.mu, conn.mu, Stream.mu. No callback and no I/O runs under them.
package h2
