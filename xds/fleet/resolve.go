package fleet

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serve/sluice/xds"
)

// resolver turns gateways whose addresses are names into one gateway for each address
// that the name has now.
type resolver struct {
	timeout time.Duration
	names   map[string]*lookup
}

// lookup is what a name was last.
type lookup struct {
	addresses []netip.Addr
	until     time.Time
	failed    bool
}

// resolveEvery is how old an answer may be.
const resolveEvery = 5 * time.Second

func newResolver(timeout time.Duration) *resolver {
	return &resolver{timeout: timeout, names: map[string]*lookup{}}
}

// expand gives back gateways with IP addresses alone. A name that can't be looked up
// keeps what it had; one that never had any is left out, which is logged once.
func (r *resolver) expand(ctx context.Context, gateways []xds.Gateway, log *slog.Logger) []xds.Gateway {
	var out []xds.Gateway
	for _, g := range gateways {
		name := hostName(g.HTTP)
		if name == "" {
			name = hostName(g.GRPC)
		}
		if name == "" {
			out = append(out, g)
			continue
		}
		for i, a := range r.find(ctx, name, log) {
			one := g
			if i > 0 || len(r.names[name].addresses) > 1 {
				one.Name = g.Name + "/" + a.String()
			}
			one.HTTP, one.GRPC = at(g.HTTP, name, a), at(g.GRPC, name, a)
			out = append(out, one)
		}
	}
	return out
}

// hostName is the host of host:port where that is a name, else "".
func hostName(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil || strings.HasPrefix(address, "unix:") {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

// at is address with a in place of name.
func at(address, name string, a netip.Addr) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != name {
		return address
	}
	return net.JoinHostPort(a.String(), port)
}

func (r *resolver) find(ctx context.Context, name string, log *slog.Logger) []netip.Addr {
	l := r.names[name]
	if l == nil {
		l = &lookup{}
		r.names[name] = l
	}
	if time.Now().Before(l.until) {
		return l.addresses
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	l.until = time.Now().Add(resolveEvery)
	if err != nil {
		if !l.failed {
			log.Warn("control plane: a gateway's name is not found", "name", name, "error", err)
		}
		l.failed, l.until = true, time.Now().Add(resolveEvery/5)
		return l.addresses
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	l.addresses, l.failed = slices.Compact(found), false
	return l.addresses
}
