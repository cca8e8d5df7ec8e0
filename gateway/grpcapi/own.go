package grpcapi

import (
	"crypto/tls"
	"log/slog"

	"github.com/sluice-serve/sluice/gateway/h2"
)

// newOwn is the transport of our own.
func newOwn(cfg *Config, service *Service, t *tls.Config) (*h2.Server, error) {
	c := h2.DefaultConfig()
	c.TLS, c.Loops, c.Descriptors = t, cfg.Loops, cfg.Descriptors
	c.MaxStreams, c.MaxMessage = cfg.MaxStreams, cfg.MaxMessage
	c.StreamWindow, c.ConnectionWindow = int(cfg.StreamWindow), int(cfg.ConnectionWindow)
	c.KeepaliveTime, c.KeepaliveTimeout = cfg.KeepaliveTime, cfg.KeepaliveTimeout
	c.PermitWithoutCalls, c.MinPingInterval = cfg.PermitWithoutCalls, cfg.MinPingInterval
	c.MaxPingStrikes, c.MaxPingsWithoutData = cfg.MaxPingStrikes, cfg.MaxPingsWithoutData
	c.MaxConnectionAge, c.MaxConnectionAgeGrace = cfg.MaxConnectionAge, cfg.MaxConnectionAgeGrace
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	deps := h2.Deps{Methods: service.Methods(), Memory: service.bodies, Codec: service.Codec(),
		Responses: service.heap.Budget, Log: log}
	server, err := h2.New(c, deps)
	if err != nil {
		return nil, err
	}
	service.Register(server)
	service.registerReflection(server)
	return server, nil
}
