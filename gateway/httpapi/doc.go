// Package httpapi is the HTTP front end of the v2 inference protocol: it decodes calls
// and encodes answers, and decides nothing. What it needs of the rest it declares
// itself (Pipeline, Control, Bodies); the root package joins them.
//
// The protocol stands apart from the transport. API.Serve turns one Call (method, path,
// header access, body reader) into one Reply (status, fields, body chunks) and knows
// nothing of connections; it is API.Start for callers that wait. Server carries calls
// over net/http, HTTP/1.1 and HTTP/2, with and without TLS; a transport of our own may
// serve the same API.
//
// One call: the route and the headers become an infer.Envelope, Pipeline.Open admits it,
// then the body is read. Its JSON part goes into a pooled buffer and is scanned once;
// tensor bytes are read straight into memory from Bodies, each tensor on a boundary of
// 64 bytes. That memory grows with what has arrived, never with what was announced: at
// most 1 MiB at once, then at most sixteen times what came so far. The answer's tensors
// are written from where the worker left them.
//
// Refusals carry their infer.Reason in the header X-Sluice-Reason, and Retry-After (in
// seconds) where trying again makes sense. Error bodies are {"error":"<text>"} with the
// original's texts.
//
// API is safe for use by any number of goroutines and starts none. Server starts those
// of net/http and one for Serve's context; Shutdown waits for them.
package httpapi
