// Package admission bounds what callers may have going on: the rate of their requests,
// of bytes, of elements and of the time that models compute for them, how many calls
// they have open, how many bytes of bodies, and how many sequences they have. The rules come from a file (file.go),
// which may change while the server runs; who is measured together is a rule's `each`.
// gateway/pipeline asks it (Open, Request, Close), the sequence batcher (BeginSequence),
// and Envoy's rate limit service (Hit).
//
// What decides is plain state without lock or clock: bucket (rate.go) and counter
// (hold.go). A meter has both and belongs to one rule, one limit and one subject;
// an account lists the meters that calls of one kind pass, so that a call costs one
// lookup. Both are bounded in number: idle ones make room, and where nothing is idle
// newcomers of a rule share one meter.
//
// With Redis, gateways share a meter: a gateway takes credit there in portions and
// spends it locally (shared.go, link.go, redis.go). Whatever goes wrong with Redis
// leaves the meter's own state, which then decides alone.
//
// Safe for concurrent use. Lock order: a shard of accounts, then the meters' table; a
// meter's own lock is taken with neither held, and with nothing under it.
package admission
