package picker

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-serve/sluice/xds"
)

// dial makes a connection to a gateway as the topology's upstream says, with the files
// that were read last, so that new ones count.
func (s *Server) dial(address string) (*grpc.ClientConn, error) {
	if s.cfg.Dial != nil {
		return s.cfg.Dial(address)
	}
	s.mu.Lock()
	t, secrets := s.topology, s.secrets
	s.mu.Unlock()
	creds := insecure.NewCredentials()
	if t.Upstream.TLS != nil {
		config, err := t.Upstream.TLS.Config(secrets)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(config)
	}
	target := address
	if !strings.HasPrefix(address, "unix:") {
		target = "passthrough:///" + address
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithPerRPCCredentials(xds.Bearer(t.Token(secrets))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
}
