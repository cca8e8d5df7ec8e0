package gateway

import (
	"runtime"

	"github.com/sluice-serve/sluice/gateway/loop"
	"github.com/sluice-serve/sluice/workers/client"
)

// coresEach is how many cores there are for each loop, which keeps one of them busy at most.
const coresEach = 4

// openLoops starts the loops that read what comes on resting connections, and the results
// of this host's workers. With one processor there are none: a loop's wait in the kernel
// keeps it until Go's monitor takes it back.
func (g *Gateway) openLoops(workers *client.Config) error {
	procs := runtime.GOMAXPROCS(0)
	if procs == 1 || g.cfg.HTTP.Transport != "sluice" && g.cfg.GRPC.Transport != "sluice" {
		return nil
	}
	for range max(1, procs/coresEach) {
		l, err := loop.New(g.logger)
		if err != nil {
			return err
		}
		g.loops = append(g.loops, l)
	}
	workers.Ears = g.loops[0]
	return nil
}
