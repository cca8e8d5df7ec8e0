package auth

import (
	"crypto/x509"
	"net/netip"
	"strings"

	"github.com/sluice-serve/sluice/infer"
)

// The names that certificates can give, in the words of the identity file.
const (
	nameSPIFFE = "spiffe"
	nameDNS    = "dns"
	nameCN     = "cn"
)

// of is what a certificate says of its holder.
func of(c *x509.Certificate) presented {
	p := presented{dns: c.DNSNames, cn: oneCommonName(&c.Subject)}
	for _, u := range c.URIs {
		p.uris = append(p.uris, u.String())
	}
	return p
}

// name is the holder's name by the first kind that it has one of; "" is none. Names of
// several kinds can't be taken for one another, nor for those of keys and tokens: they
// begin with spiffe:, dns: or cn:.
// Source: SPIFFE X.509-SVID, 2: exactly one URI.
func (p *presented) name(order []string) string {
	for _, kind := range order {
		name := ""
		switch {
		case kind == nameSPIFFE && len(p.uris) == 1 && strings.HasPrefix(p.uris[0], "spiffe://"):
			name = p.uris[0]
		case kind == nameDNS && len(p.dns) > 0:
			name = "dns:" + p.dns[0]
		case kind == nameCN && p.cn != "":
			name = "cn:" + p.cn
		}
		if name != "" && len(name) <= maxName && printable(name) {
			return name
		}
	}
	return ""
}

// peers are those whose word on who calls is taken.
type peers struct {
	networks []netip.Prefix
	unix     bool
	names    []glob // of their certificates
}

func (f *faults) peers(texts []string, at func(format string, args ...any)) (p peers) {
	for _, s := range texts {
		if s == "unix" {
			p.unix = true
		} else if network, err := netip.ParsePrefix(s); err == nil {
			if network.Bits() == 0 {
				at("'%s' trusts everybody: whoever calls could be whom they like", s)
			}
			p.networks = append(p.networks, network.Masked())
		} else if addr, err := netip.ParseAddr(s); err == nil {
			p.networks = append(p.networks, netip.PrefixFrom(addr, addr.BitLen()))
		} else if strings.HasPrefix(s, "spiffe://") || strings.HasPrefix(s, "dns:") || strings.HasPrefix(s, "cn:") {
			g, err := newGlob(s)
			if err != nil {
				at("'%s': %s", clean(s), err)
			}
			p.names = append(p.names, g)
		} else {
			at("'%s' is neither a network (10.0.0.0/8), nor unix, nor a certificate's name (spiffe://…, dns:…, cn:…)", clean(s))
		}
	}
	return p
}

// near says that a call came from one of the peers, by its address.
func (p *peers) near(env *infer.Envelope) bool {
	if env.Unix {
		return p.unix
	}
	if addr := env.Remote.Addr().Unmap(); addr.IsValid() {
		for _, n := range p.networks {
			if n.Contains(addr) {
				return true
			}
		}
	}
	return false
}

// vouches says that a certificate is that of one of the peers.
func (p *peers) vouches(c *presented) bool {
	if len(p.names) == 0 {
		return false
	}
	for _, kind := range []string{nameSPIFFE, nameDNS, nameCN} {
		if name := c.name([]string{kind}); name != "" && anyMatch(p.names, name) {
			return true
		}
	}
	return false
}

// forwardedBy are headers that a proxy adds, or a browser for a page of somebody else: a
// call that has one does not come from a process of this host that means us.
var forwardedBy = []headerName{{"X-Forwarded-For", "x-forwarded-for"}, {"X-Forwarded-Proto", "x-forwarded-proto"},
	{"X-Forwarded-Host", "x-forwarded-host"}, {"X-Forwarded-Client-Cert", "x-forwarded-client-cert"}, {"Forwarded", "forwarded"},
	{"Via", "via"}, {"X-Real-Ip", "x-real-ip"}, {"X-Envoy-External-Address", "x-envoy-external-address"},
	{"X-Envoy-Expected-Rq-Timeout-Ms", "x-envoy-expected-rq-timeout-ms"}, {"Origin", "origin"}}

// local says that a call was made on this host, by nobody on behalf of another.
func local(env *infer.Envelope) bool {
	if !env.Unix && !env.Remote.Addr().Unmap().IsLoopback() {
		return false
	}
	for i := range forwardedBy {
		if forwardedBy[i].there(env) {
			return false
		}
	}
	return true
}

// headerName is a header's name as HTTP and as gRPC transports have it.
type headerName struct{ http, grpc string }

func (h *headerName) in(env *infer.Envelope) string {
	if env.Protocol == "grpc" {
		return h.grpc
	}
	return h.http
}

// of is the one value that a call shows; "" is none. One that it gives twice is an error:
// who stands before us could have looked at the other.
func (h *headerName) of(env *infer.Envelope) (string, error) {
	if env.Header == nil {
		return "", nil
	}
	v := env.Header(h.in(env))
	if v != "" && env.Fields != nil && env.Fields.Count(h.in(env)) > 1 {
		return "", refuse("the call has the header " + h.grpc + " more than once")
	}
	return v, nil
}

// there says that a call has the header, be it empty.
func (h *headerName) there(env *infer.Envelope) bool {
	if env.Fields != nil {
		return env.Fields.Count(h.in(env)) > 0
	}
	return env.Header != nil && env.Header(h.in(env)) != ""
}
