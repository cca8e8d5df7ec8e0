package gateway

import (
	"runtime"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/workers/client"
)

// openLoops starts the loops that read what comes on resting connections, and the results
// of this host's workers.
func (g *Gateway) openLoops(workers *client.Config) error {
	if g.cfg.HTTP.Transport != "sluice" && g.cfg.GRPC.Transport != "sluice" {
		return nil
	}
	for range loop.Count(runtime.GOMAXPROCS(0)) {
		l, err := loop.New(g.logger, g.loops...)
		if err != nil {
			return err
		}
		g.loops = append(g.loops, l)
	}
	if len(g.loops) > 0 {
		workers.Ears = g.loops[0]
	}
	return nil
}
