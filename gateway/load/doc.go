// Package load says how busy a gateway is, to whoever chooses between gateways: Envoy's
// client-side weighted round robin, gRPC clients, the endpoint picker.
//
// A Meter looks at all models a few times a second, smooths what it sees and writes it
// down once in each format as an ORCA report. Requests only load a pointer: naming the
// load in an answer costs no lock, no formatting and no allocation. While nobody asks,
// the Meter looks once in a while only.
//
// sampler is the arithmetic: a plain struct without clock or goroutine, which Run
// drives. Everything else may be called from any goroutine.
package load
