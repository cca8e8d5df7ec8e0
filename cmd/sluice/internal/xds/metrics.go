package xds

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/stats"
)

// metricsFlags are those of the control plane's own metrics.
type metricsFlags struct {
	address string
	port    int // negative: off
	bound   int // the port listened on; 0: none
}

func (m *metricsFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&m.address, "metrics-address", "127.0.0.1", "address of the metrics")
	fs.IntVar(&m.port, "metrics-port", -1, "port of /metrics, for Prometheus; 0 takes any free one, -1 is none")
}

// serve runs f with a registry, which is scraped where a flag asks for it.
func (m *metricsFlags) serve(ctx context.Context, f func(*stats.Registry) error) error {
	registry := stats.New(stats.Config{}, stats.Deps{})
	if m.port < 0 {
		return f(registry)
	}
	listeners, err := listen.Open(ctx, listen.Config{Address: m.address, Port: m.port})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	m.bound = portOf(listeners[0].Addr())
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- registry.Serve(serving, listeners[0], nil) }()
	err = f(registry)
	stop()
	return errors.Join(err, <-ended)
}
