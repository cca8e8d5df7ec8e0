package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/xds"
)

// resolver turns gateways whose addresses are names into one gateway for each address
// that the name has now. Names are looked up beside its caller, who never waits for them.
type resolver struct {
	timeout time.Duration
	wake    func() // called when a name has other addresses

	mu    sync.Mutex
	names map[string]*lookup // mu
}

// lookup is what a name was last.
type lookup struct {
	addresses []netip.Addr
	until     time.Time
	running   bool
	asked     bool // there was an answer, or none in time
	failed    bool
}

// resolveEvery is how old an answer may be.
const resolveEvery = 5 * time.Second

func newResolver(timeout time.Duration, wake func()) *resolver {
	return &resolver{timeout: timeout, wake: wake, names: map[string]*lookup{}}
}

// expand gives back gateways with IP addresses alone, and whether every name was looked
// up before. A gateway of a name is called after its address too, so that it keeps its
// name when others join; one for which own is true keeps its own while it is alone. A
// name that can't be looked up keeps what it had; one that never had any is left out.
func (r *resolver) expand(ctx context.Context, running *sync.WaitGroup, gateways []xds.Gateway, own func(string) bool,
	log *slog.Logger) (out []xds.Gateway, found bool) {
	found = true
	for _, g := range gateways {
		name := cmp.Or(hostName(g.HTTP), hostName(g.GRPC))
		if name == "" {
			out = append(out, g)
			continue
		}
		addresses, asked := r.find(ctx, running, name, log)
		found = found && asked
		for i, a := range addresses {
			one := g
			if i > 0 || !own(g.Name) {
				one.Name = g.Name + "/" + a.String()
			}
			one.HTTP, one.GRPC = at(g.HTTP, name, a), at(g.GRPC, name, a)
			out = append(out, one)
		}
	}
	return out, found
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

// find is what name was last; it is looked up anew beside that when it is old.
func (r *resolver) find(ctx context.Context, running *sync.WaitGroup, name string, log *slog.Logger) (addresses []netip.Addr, asked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.names[name]
	if l == nil {
		l = &lookup{}
		r.names[name] = l
	}
	if !l.running && !time.Now().Before(l.until) {
		l.running = true
		running.Go(func() { r.look(ctx, name, l, log) })
	}
	return l.addresses, l.asked
}

// look asks for name once.
func (r *resolver) look(ctx context.Context, name string, l *lookup, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i, a := range found {
		found[i] = a.Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	r.mu.Lock()
	failed, news := l.failed, !l.asked
	l.running, l.asked, l.failed, l.until = false, true, err != nil, time.Now().Add(resolveEvery)
	if err != nil {
		l.until = time.Now().Add(resolveEvery / 5)
	} else {
		found = slices.Compact(found)
		news = news || !slices.Equal(found, l.addresses)
		l.addresses = found
	}
	r.mu.Unlock()
	if err != nil && !failed {
		log.Warn("control plane: a gateway's name is not found", "name", name, "error", err)
	}
	if news {
		r.wake()
	}
}
