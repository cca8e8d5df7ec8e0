package infer

import (
	"context"
	"net/netip"
	"strconv"
)

// Caller names who calls, where callers share what there is of something: the principal, or of
// one who showed nothing the user at the other end of a Unix socket, or the address, of IPv6 its
// network of 64 bits. It is never "".
func (e *Envelope) Caller() string {
	switch {
	case e.Principal != nil && e.Principal.Name != "":
		return "principal " + e.Principal.Name
	case e.Peer.Known:
		return "user " + strconv.FormatUint(uint64(e.Peer.UID), 10)
	case e.Remote.IsValid():
		at := e.Remote.Addr().Unmap().WithZone("")
		if at.Is6() {
			at = netip.PrefixFrom(at, 64).Masked().Addr()
		}
		return "address " + at.String()
	}
	return "nobody"
}

// Context is what a call that was opened goes on with: loads, which are shared fairly, begin
// in the name of its caller.
func (e *Envelope) Context(ctx context.Context) context.Context {
	if e.Change && e.Action == ActionModelRepository {
		return WithCaller(ctx, e.Caller())
	}
	return ctx
}

type callerKey struct{}

// WithCaller gives what is begun with the context to a caller; "" is the server itself.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf is the caller of a context, "" where there is none.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}
