package h2

import (
	"crypto/x509"

	"google.golang.org/grpc/credentials"
)

// Certificate is the leaf of the client's certificate, verified by TLS; nil: it showed
// none, or speaks plain text.
func (st *Stream) Certificate() *x509.Certificate { return Verified(st.c.auth) }

// Verified is the leaf of the certificate that a connection's handshake verified; nil:
// none.
func Verified(auth credentials.AuthInfo) *x509.Certificate {
	if info, ok := auth.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
		return info.State.PeerCertificates[0]
	}
	return nil
}
