package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The names of secrets; a listener's begin with its name.
const (
	certificateSecret = "/certificate"
	clientCASecret    = "/client-ca"
	upstreamSecrets   = "upstream"
)

// Files lists the PEM files and the token that t names, each once, in no order.
func (t *Topology) Files() []string {
	seen := map[string]bool{"": true}
	var out []string
	add := func(files ...string) {
		for _, f := range files {
			if !seen[f] {
				seen[f] = true
				out = append(out, f)
			}
		}
	}
	for i := range t.Listeners {
		if s := t.Listeners[i].TLS; s != nil {
			add(s.Cert, s.Key, s.ClientCA)
		}
	}
	if c := t.Upstream.TLS; c != nil {
		add(c.CA, c.Cert, c.Key)
	}
	add(t.Upstream.TokenFile)
	return out
}

// Token is what t's TokenFile held when its files were read; "": it names none.
func (t *Topology) Token(secrets Secrets) string {
	return strings.TrimSpace(string(secrets[t.Upstream.TokenFile]))
}

// Config checks a gateway's certificate as Envoy does: its chain, and its DNS name only
// where one is given; and shows the certificate that t names.
func (t *ClientTLS) Config(secrets Secrets) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secrets[t.CA]) {
		return nil, fmt.Errorf("%s has no certificate", t.CA)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: t.Name}
	if t.Cert != "" {
		pair, err := tls.X509KeyPair(secrets[t.Cert], secrets[t.Key])
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if t.Name == "" {
		c.InsecureSkipVerify = true // of the name; VerifyConnection checks the chain
		c.VerifyConnection = func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, cert := range s.PeerCertificates[1:] {
				between.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		}
	}
	return c, nil
}

// Bearer shows a token with each call of a gRPC connection, also over plain text, as
// gateways take it.
type Bearer string

// GetRequestMetadata is credentials.PerRPCCredentials.
func (b Bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if b == "" {
		return nil, nil
	}
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity is credentials.PerRPCCredentials.
func (Bearer) RequireTransportSecurity() bool { return false }

// pem is what a file held; the files come inline, so that an Envoy elsewhere needs none.
func (b *builder) pem(file string) *corev3.DataSource {
	data, ok := b.secrets[file]
	if !ok {
		b.fail("the file %s was not read", file)
	}
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}

func (b *builder) certificate(name, cert, key string) *tlsv3.SdsSecretConfig {
	b.out.Secrets[name] = &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: b.pem(cert), PrivateKey: b.pem(key)}}}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: fromADS()}
}

func (b *builder) authority(name, file, dns string) *tlsv3.SdsSecretConfig {
	v := &tlsv3.CertificateValidationContext{TrustedCa: b.pem(file)}
	if dns != "" {
		v.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{{SanType: tlsv3.SubjectAltNameMatcher_DNS,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: dns}}}}
	}
	b.out.Secrets[name] = &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: fromADS()}
}

// downstreamTLS is how a listener speaks TLS; nil: it does not.
func (b *builder) downstreamTLS(l *Listener) *corev3.TransportSocket {
	if l.TLS == nil {
		return nil
	}
	common := &tlsv3.CommonTlsContext{
		TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2},
		AlpnProtocols:                  []string{"h2", "http/1.1"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{b.certificate(l.Name+certificateSecret, l.TLS.Cert, l.TLS.Key)},
	}
	c := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if l.TLS.ClientCA != "" {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: b.authority(l.Name+clientCASecret, l.TLS.ClientCA, "")}
		c.RequireClientCertificate = wrapperspb.Bool(!l.TLS.Optional)
	}
	return b.socket(c)
}

// upstreamTLS is how gateways are called over TLS; nil: in plain text.
func (b *builder) upstreamTLS(http2 bool) *corev3.TransportSocket {
	t := b.up.TLS
	if t == nil {
		return nil
	}
	alpn := "http/1.1"
	if http2 {
		alpn = "h2"
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{alpn},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: b.authority(upstreamSecrets+"/ca", t.CA, t.Name)}}
	if t.Cert != "" {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{b.certificate(upstreamSecrets+certificateSecret, t.Cert, t.Key)}
	}
	return b.socket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: t.Name})
}

func (b *builder) socket(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: b.packed(context)}}
}
