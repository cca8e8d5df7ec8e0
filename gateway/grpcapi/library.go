package grpcapi

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sluice-serve/sluice/gateway/h2c"
)

// library is grpc-go as a transport.
type library struct {
	*grpc.Server
	plain bool // text: clients may upgrade from HTTP/1.1
}

// maxHead bounds a call's header.
const maxHead = 64 << 10

// newLibrary makes a server, whose workers run until Shutdown.
func newLibrary(cfg *Config, service *Service, t *tls.Config) library {
	l := library{grpc.NewServer(options(cfg, service, t)...), t == nil}
	service.Register(lendingRegistrar{l.Server})
	service.registerReflection(l.Server)
	return l
}

func options(cfg *Config, service *Service, t *tls.Config) []grpc.ServerOption {
	workers := cfg.Workers
	if workers == 0 {
		workers = 2 * runtime.GOMAXPROCS(0)
	}
	pings := keepalive.EnforcementPolicy{MinTime: cfg.MinPingInterval, PermitWithoutStream: cfg.PermitWithoutCalls}
	if cfg.MaxPingStrikes == 0 {
		pings = keepalive.EnforcementPolicy{MinTime: 1, PermitWithoutStream: true} // no ping is a strike
	}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(lendingCodec{service.Codec()}),
		grpc.StatsHandler(loanEvents{}),
		grpc.MaxRecvMsgSize(int(cfg.MaxMessage)),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(cfg.MaxStreams),
		grpc.MaxHeaderListSize(maxHead),
		grpc.ConnectionTimeout(20 * time.Second),
		grpc.NumStreamWorkers(uint32(workers)),
		grpc.InitialWindowSize(cfg.StreamWindow),
		grpc.InitialConnWindowSize(cfg.ConnectionWindow),
		grpc.ReadBufferSize(cfg.BufferSize),
		grpc.WriteBufferSize(cfg.BufferSize),
		grpc.SharedWriteBuffer(true),
		grpc.WaitForHandlers(true), // nobody reads a request once Shutdown is over
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.KeepaliveTime, Timeout: cfg.KeepaliveTimeout,
			MaxConnectionAge: cfg.MaxConnectionAge, MaxConnectionAgeGrace: cfg.MaxConnectionAgeGrace}),
		grpc.KeepaliveEnforcementPolicy(pings),
	}
	if t != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(t)))
	}
	return opts
}

// Serve is transport's.
func (l library) Serve(from net.Listener) error {
	if l.plain {
		from = h2c.Listener(from, maxHead)
	}
	if err := l.Server.Serve(from); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Shutdown is transport's.
func (l library) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		l.Stop()
		<-done
		return ctx.Err()
	}
}
