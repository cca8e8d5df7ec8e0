// Package accesslog writes one JSON object for each call that ended: who asked what, what
// came of it and why, and where the time went. pipeline.Ended feeds it.
//
// A line is encoded by the goroutine that answers the call, into pooled memory, and
// copied into a bounded buffer; Run writes the buffer out. A full buffer loses lines and
// counts them: no call ever waits for a disk. Every text that a client chose is escaped
// and cut, so that it can neither begin a line of its own nor flood the file.
//
// The file may be moved away at any time, by another program or by Run itself when it has
// grown past a size: Run notices a moved file within a second, and at once when it is told
// to reopen.
//
// Add may be called from any goroutine; Run's one goroutine owns the file. The one
// lock guards the buffer, and no I/O runs under it.
//
// A line's members, those left out that have nothing to say:
//
//	time              when the call ended, RFC 3339 in UTC with microseconds
//	outcome           ok, invalid (the request's fault), denied, refused (by a limit or the
//	                  server's state), cancelled, failed (our fault, or a worker's)
//	protocol          http or grpc
//	method, path      of HTTP; rpc is the method over gRPC
//	status            HTTP status; grpc_code is the code's number over gRPC
//	code, reason      of a failure: infer.Code in words, infer.Reason
//	error             what the client was told
//	request_id        the header x-request-id, else the request's own id
//	trace_id, sampled of the trace that the call belongs to, and whether it is kept
//	principal, auth   who called, and how it was proved
//	remote            address and port, or "unix"
//	model, version    version is the one that answered, where one did
//	rows, batch       rows of the request, rows of the batch that it went in
//	queue_us, compute_us, cache_us, total_us
//	                  microseconds: waiting for an instance, in the batch, in the cache, all
//	cache             hit, collapsed, miss, bypass
//	received, sent    bytes of the bodies
//	one_of            N where this line stands for N successes
package accesslog
