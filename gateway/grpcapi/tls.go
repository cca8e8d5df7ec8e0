package grpcapi

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// config reads the files.
func (t *TLS) config() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("gRPC: TLS certificate: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	if t.Root == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(t.Root)
	if err != nil {
		return nil, fmt.Errorf("gRPC: TLS root certificate: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("gRPC: TLS root certificate: no certificate in %s", t.Root)
	}
	if t.Mutual {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}
