// Package h2 is an HTTP/2 server transport for gRPC, made for many small unary calls
// and for large messages: RFC 9113 and RFC 7541 as far as gRPC's clients use them, with
// windows, frames and every other thing that a peer may ask for bounded.
//
// A Server is a grpc.ServiceRegistrar, so services that were generated for grpc-go run
// on it unchanged. Methods given to Handle skip generated code: their messages are
// received straight into memory that the method chooses, and their answers are written
// from where they lie.
//
// Each connection has one goroutine, which reads, and begins the calls of Methods whose
// messages are small. They are answered by whoever has the answer (Stream.Answer); large
// messages, services, and calls that must wait run on goroutines that are kept for the
// next call. Whoever has something to send appends it to the connection's output, and one
// of them writes all that has gathered: answers that are ready together leave in one
// system call. Who must not block, as the reading goroutine, writes what the socket takes
// at once and leaves the rest to a goroutine, so a peer that takes nothing can't keep it
// from its work.
//
// Lock order: Server.mu, conn.mu, Stream.mu. No callback and no I/O runs under them.
package h2
