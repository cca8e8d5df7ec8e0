package gateway

import (
	"context"

	"github.com/sluice-serve/sluice/tracing"
	"github.com/sluice-serve/sluice/tracing/otlp"
)

// openTracing makes the tracer, and the exporter where the settings ask for spans.
func (g *Gateway) openTracing() error {
	deps := tracing.Deps{Log: g.logger, Dropped: g.stats.TracesDropped}
	if x := g.cfg.Trace.Export; x != nil {
		e, err := otlp.New(*x, otlp.Deps{Log: g.logger, Version: g.cfg.Version, Dropped: g.stats.TracesDropped})
		if err != nil {
			return err
		}
		g.spans, deps.Spans = e, e
	}
	g.tracer = tracing.New(g.cfg.Trace, deps)
	return nil
}

// runTracing writes traces, or exports spans, until ctx ends.
func (g *Gateway) runTracing(ctx context.Context) error {
	if g.spans != nil {
		return g.spans.Run(ctx)
	}
	return g.tracer.Run(ctx)
}
