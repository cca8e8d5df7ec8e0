package xds

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serve/sluice/internal/configfile"
)

// MaxPicked bounds what Envoy may show an endpoint picker of one call, in bytes.
const MaxPicked = 32 << 20

// EmptyList is the list at the top of a topology that says in words that there is nothing in it, empty.
const EmptyList = "gateways"

// Parse reads a Topology from YAML. A field that there is not is a fault, with its line.
func Parse(data []byte) (*Topology, error) {
	t, err := Decode(data)
	if err != nil {
		return nil, err
	}
	return t, t.Validate()
}

// Decode is Parse for a file that is not the whole topology: it does not call Validate. A text that says nothing is a
// fault; see configfile.Document.
func Decode(data []byte) (*Topology, error) {
	if err := configfile.Document(data, EmptyList); err != nil {
		return nil, err
	}
	t := &Topology{}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(t); err != nil {
		return nil, err
	}
	return t, nil
}

// Validate says everything that is wrong with t at once, or nil.
func (t *Topology) Validate() error {
	f := &faults{}
	names := map[string]bool{}
	for i := range t.Gateways {
		g := &t.Gateways[i]
		where := fmt.Sprintf("gateway %q", g.Name)
		f.unless(g.Name != "", "gateway %d has no name", i+1)
		f.unless(!names[g.Name], "%s is there twice", where)
		names[g.Name] = true
		f.unless(g.HTTP != "" || g.GRPC != "", "%s has neither http nor grpc", where)
		f.address(where+": http", g.HTTP)
		f.address(where+": grpc", g.GRPC)
		f.unless(g.Weight >= 0 && g.Weight <= 1<<20, "%s: weight %d is not in [0, %d]", where, g.Weight, 1<<20)
		f.name("gateway", g.Name)
		f.name(where+": group", g.Group)
		f.unless(!strings.Contains(g.Group, "/"), "%s: group %q has a slash, which parts groups from models in the names of clusters", where, g.Group)
		f.name(where+": zone", g.Zone)
	}
	f.listeners(t.Listeners)
	seen := map[[2]string]bool{}
	for i := range t.Routes {
		r := &t.Routes[i]
		key := [2]string{r.Model, r.Version}
		f.unless(!seen[key], "route %q version %q is there twice", r.Model, r.Version)
		seen[key] = true
		f.route(r)
	}
	f.services(&t.Services)
	f.upstream(&t.Upstream)
	f.unless(t.Services.Picker == nil || t.Upstream.BufferBytes <= MaxPicked, "upstream: buffer_bytes %d: with a picker, which is shown so much of a body, at most %d",
		t.Upstream.BufferBytes, MaxPicked)
	return errors.Join(f.errs...)
}

// faults gathers what is wrong.
type faults struct{ errs []error }

func (f *faults) unless(ok bool, format string, args ...any) {
	if !ok {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

// address checks host:port or unix:path; "" is none.
func (f *faults) address(what, text string) {
	if text == "" || strings.HasPrefix(text, unixPrefix+"/") {
		return
	}
	host, port, err := net.SplitHostPort(text)
	n, perr := strconv.ParseUint(port, 10, 16)
	f.unless(err == nil && perr == nil && n > 0 && host != "", "%s: %q is not host:port or unix:/path", what, text)
}

// name checks what becomes part of names in Envoy.
func (f *faults) name(what, text string) {
	f.unless(plain(text), "%s %q is too long or has unprintable characters", what, text)
}

// plain says that a text can be part of names and matches in Envoy.
func plain(text string) bool {
	bad := func(r rune) bool { return !unicode.IsPrint(r) }
	return len(text) <= 256 && utf8.ValidString(text) && !strings.ContainsFunc(text, bad)
}

func (f *faults) listeners(ls []Listener) {
	names := map[string]bool{}
	for i := range ls {
		l := &ls[i]
		name := orDefault(l.Name, "mesh")
		f.unless(!names[name], "listener %q is there twice", name)
		names[name] = true
		f.name("listener", name)
		f.name("listener's socket", l.Unix)
		f.unless(l.Port >= 0 && l.Port < 1<<16, "listener %q: port %d is not in [0, 65535]", name, l.Port)
		f.unless(l.Address == "" || net.ParseIP(l.Address) != nil, "listener %q: %q is not an IP address", name, l.Address)
		for _, p := range l.Internal {
			_, err := netip.ParsePrefix(p)
			f.unless(err == nil, "listener %q: internal: %q is not a range of addresses as 10.0.0.0/8", name, p)
		}
		f.unless(l.TrustedHops >= 0, "listener %q: trusted_hops is negative", name)
		if l.TLS != nil {
			f.unless(l.TLS.Cert != "" && l.TLS.Key != "", "listener %q: tls needs cert and key", name)
			f.unless(!l.TLS.Optional || l.TLS.ClientCA != "", "listener %q: tls is optional, but has no client_ca", name)
		}
	}
}

func (f *faults) route(r *Route) {
	where := fmt.Sprintf("route %q", r.Model)
	f.unless(r.Model != "", "a route has no model")
	f.name(where+": model", r.Model)
	f.name(where+": version", r.Version)
	f.unless(len(r.Targets) > 0, "%s has no targets", where)
	f.unless(r.Timeout >= 0, "%s: the timeout is negative", where)
	total, used := 0, 0
	for i := range r.Targets {
		t := r.target(i)
		f.name(where+": target", t.Model)
		f.name(where+": target's version", t.Version)
		f.name(where+": target's group", t.Group)
		f.unless(r.Targets[i].Weight >= 0 && t.Weight <= 1<<20, "%s: weight %d is not in [0, %d]", where, t.Weight, 1<<20)
		total += t.Weight
		if t.Weight > 0 {
			used++
		}
	}
	f.unless(len(r.Targets) == 0 || total > 0, "%s: all weights are 0", where)
	f.unless(!r.Stateful || used < 2, "%s is stateful: its calls can't be shared out by weights, which would tear sequences apart", where)
	for i := range r.Mirror {
		m := r.mirror(i)
		p := m.Percent
		f.name(where+": mirror", m.Model)
		f.name(where+": mirror's version", m.Version)
		f.name(where+": mirror's group", m.Group)
		f.unless(p > 0 && p <= 100, "%s: the mirror's percent %v is not in (0, 100]", where, p)
	}
}

func (f *faults) services(s *Services) {
	for name, at := range map[string]string{"authz": s.Authz.address(), "rate_limit": s.RateLimit.address(), "picker": s.Picker.address(),
		"collector": s.Collector.address()} {
		f.address("services: "+name, at)
	}
	if c := s.Collector; c != nil {
		f.unless(c.Address != "", "services: collector has no address")
		f.unless(c.Percent == nil || *c.Percent >= 0 && *c.Percent <= 100, "services: collector: percent is not in [0, 100]")
	}
}

func (f *faults) upstream(u *Upstream) {
	f.unless(slices.Contains([]string{"", BalanceLeastRequest, BalanceRoundRobin, BalanceLoad, BalanceHash}, u.Balance),
		"upstream: balance %q is none of %s, %s, %s, %s", u.Balance, BalanceLeastRequest, BalanceRoundRobin, BalanceLoad, BalanceHash)
	f.unless(slices.Contains([]string{"", "prefer", "spread"}, u.Zones), "upstream: zones %q is neither prefer nor spread", u.Zones)
	f.unless(u.BufferBytes == 0 || u.BufferBytes >= 65536 && u.BufferBytes <= 1<<30, "upstream: buffer_bytes %d is not in [65536, %d]", u.BufferBytes, 1<<30)
	f.unless(u.RetryBudget >= 0 && u.RetryBudget <= 100, "upstream: retry_budget %v is not in [0, 100]", u.RetryBudget)
	for name, n := range map[string]int{"retries": u.Retries, "errors_in_row": u.ErrorsInRow, "max_connections": u.MaxConnections,
		"max_pending": u.MaxPending, "max_requests": u.MaxRequests, "max_streams": u.MaxStreams} {
		f.unless(n >= 0 && n <= 1<<30, "upstream: %s %d is not in [0, %d]", name, n, 1<<30)
	}
	f.unless(min(u.ConnectTimeout, u.HealthInterval, u.Ejection, u.IdleTimeout) >= 0, "upstream: a time is negative")
	if t := u.TLS; t != nil {
		f.unless(t.CA != "", "upstream: tls needs ca")
		f.unless((t.Cert == "") == (t.Key == ""), "upstream: tls needs cert and key, or neither")
	}
}
