package picker

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/xds"
)

// dial makes a connection to a gateway as Envoy would: plain, or with the topology's
// files, which are read each time, so that new ones count.
func (s *Server) dial(address string) (*grpc.ClientConn, error) {
	if s.cfg.Dial != nil {
		return s.cfg.Dial(address)
	}
	s.mu.Lock()
	t := s.topology.Upstream.TLS
	s.mu.Unlock()
	creds := insecure.NewCredentials()
	if t != nil {
		config, err := clientTLS(t)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	target := address
	if !strings.HasPrefix(address, "unix:") {
		target = "passthrough:///" + address
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
}

// clientTLS reads the files of t. Without a name it is the chain alone that counts.
func clientTLS(t *xds.ClientTLS) (*tls.Config, error) {
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, err
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", t.CA)
	}
	config := &tls.Config{RootCAs: roots, ServerName: t.Name, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.Name == "" {
		config.InsecureSkipVerify = true // the name; the chain is checked here
		config.VerifyConnection = func(c tls.ConnectionState) error {
			others := x509.NewCertPool()
			for _, cert := range c.PeerCertificates[1:] {
				others.AddCert(cert)
			}
			_, err := c.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others})
			return err
		}
	}
	return config, nil
}
