// Package grpcapi is the gRPC front end: it decodes calls of the v2 protocol to
// infer.Request, hands them to a Pipeline, and encodes what comes back. It decides
// nothing: rights, limits and validation are the Pipeline's.
//
// Two halves lie here. Service is the protocol: service descriptors, a codec that
// reads and writes ModelInfer by hand, and every RPC's handler. It asks of its
// transport no more than grpc.ServiceRegistrar and a codec, so another HTTP/2
// transport can serve it. Server is the transport: grpc-go, its listeners, TLS,
// keepalive, windows and compression.
//
// A ModelInfer message below 32 KiB that arrived in one piece is not copied: its
// tensors are views on the received frame, which is counted and given back after the
// last reader. A larger one is copied once, out of the frames into memory from
// Bodies, each tensor at a multiple of 64 bytes. Outputs of 8 KiB and more are handed
// to the transport where they lie and released after they were written.
//
// A Service has no lock: what it holds is fixed at construction but for an atomic flag
// and a channel that say it is stopping. Handlers run on the transport's goroutines.
package grpcapi
