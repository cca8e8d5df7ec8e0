// Package rls answers Envoy's rate limit service, version 3: it turns descriptors into
// the calls that the limits on callers speak of, and their verdicts into Envoy's words.
// The limits themselves are the caller's (Decide); gateway joins them.
//
// A descriptor's entries are principal, group (any number), model, action, remote_address
// and bytes; without an action, method and path tell action and model. Other entries are
// not looked at. Each descriptor is one call; one that is over its limit refuses the
// request, with the reason and the time to wait in the answer's headers.
//
// Source: envoy/service/ratelimit/v3/rls.proto.
package rls
