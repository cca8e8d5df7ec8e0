package flags

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/xds"
)

// xds are the flags of the control plane inside a gateway.
func (s *Serve) xds() []flag {
	c := &s.Config.XDS
	port := func(v string) error {
		c.Allow = true
		return intInto(&c.Port, 0, 65535)(v)
	}
	peer := func(v string) error {
		g, err := parsePeer(v)
		c.Peers = append(c.Peers, g)
		return err
	}
	return []flag{
		{name: "xds-port", arg: "integer", help: "Port of the control plane for Envoys (docs/0013-control-plane.md); 0 takes any free one. " +
			"Without this flag there is none.", set: port},
		{name: "xds-address", arg: "string", def: c.Address, help: "Address it listens on; other than loopback it needs the three files below.",
			set: stringInto(&c.Address)},
		{name: "xds-unix-socket", arg: "string", help: "Listen on a Unix socket at this path as well.", set: stringInto(&c.Unix)},
		{name: "xds-cert", arg: "string", help: "PEM file of the certificate shown to Envoys.", set: stringInto(&c.TLS.Cert)},
		{name: "xds-key", arg: "string", help: "PEM file of its key.", set: stringInto(&c.TLS.Key)},
		{name: "xds-root-cert", arg: "string", help: "PEM file of the roots of Envoys' certificates, which they must show then.", set: stringInto(&c.TLS.Root)},
		{name: "xds-envoy", arg: "string", repeat: true, help: "DNS name or URI in the certificates of Envoys that are served; may be given several times. " +
			"Without it: every one that the roots signed.", set: func(v string) error { c.Envoys = append(c.Envoys, v); return nil }},
		{name: "xds-state", arg: "string", help: "File in which the targets of routes outlive this process, so that a switch goes on after a restart.",
			set: stringInto(&c.State)},
		{name: "xds-config", arg: "string", help: "Topology in YAML; read again when it changes. Without it: this gateway and its peers.",
			set: stringInto(&c.File)},
		{name: "xds-name", arg: "string", def: c.Name, help: "Name of this gateway in the topology.", set: stringInto(&c.Name)},
		{name: "xds-host", arg: "string", help: "IP address at which Envoys reach this gateway; where it listens, or loopback, if not given.",
			set: stringInto(&c.Host)},
		{name: "xds-zone", arg: "string", help: "Zone of this gateway.", set: stringInto(&c.Zone)},
		{name: "xds-peer", arg: "name,http=host:port,grpc=host:port", repeat: true, help: "Another gateway, with group=, zone= and weight= as " +
			"well; may be given several times.", set: peer},
		{name: "xds-mesh-port", arg: "integer", def: strconv.Itoa(c.Mesh), help: "Port on which Envoys listen, without --xds-config.",
			set: intInto(&c.Mesh, 1, 65535)},
	}
}

// parsePeer reads `name,key=value…`.
func parsePeer(v string) (xds.Gateway, error) {
	parts := strings.Split(v, ",")
	g := xds.Gateway{Name: parts[0]}
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		switch key {
		case "http":
			g.HTTP = value
		case "grpc":
			g.GRPC = value
		case "group":
			g.Group = value
		case "zone":
			g.Zone = value
		case "weight":
			n, err := strconv.Atoi(value)
			if err != nil {
				return g, fmt.Errorf("the weight '%s' is not an integer", value)
			}
			g.Weight = n
		default:
			return g, fmt.Errorf("'%s' is not http=, grpc=, group=, zone= or weight=", p)
		}
	}
	t := xds.Topology{Gateways: []xds.Gateway{g}}
	return g, t.Validate()
}
