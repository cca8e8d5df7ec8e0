package gateway

import (
	"github.com/sluice-serve/sluice/gateway/auth"
	"github.com/sluice-serve/sluice/gateway/listen"
	"github.com/sluice-serve/sluice/gateway/regions"
)

// openRegions makes the registry of clients' shared memory. On a host without such memory
// there is none, which is a fault only where it was asked for.
func (g *Gateway) openRegions() error {
	if g.cfg.Auth.ClientMemory == auth.ClientMemoryNone {
		return nil
	}
	r, err := regions.New(g.cfg.Regions, regions.Deps{Workers: g.workers, Log: g.logger, Local: g.auth.Local})
	switch {
	case err != nil && g.cfg.Auth.ClientMemory == auth.ClientMemoryAll:
		return err
	case err != nil:
		g.logger.Info("no shared memory of clients on this host", "error", err)
		return nil
	}
	if err := listen.CanFindUsers(); err != nil {
		g.logger.Warn("the kernel does not tell whose a loopback TCP connection is: shared memory of clients needs "+
			"--client-shm-prefix, or permissions for everybody (docs/0019-shared-memory.md)", "error", err)
	}
	g.regions = r
	g.stats.Add(g.regionFigures)
	return nil
}

// regionFigures are what clients have registered, by the kind of owner.
func (g *Gateway) regionFigures(gauge, counter func(name, help string, v float64, labels ...string)) {
	for _, f := range g.regions.Figures() {
		gauge("sluice_client_memory_regions", "Regions of shared memory that clients have registered.", float64(f.Regions), "owner", f.Owner)
		gauge("sluice_client_memory_bytes", "Bytes of shared memory that clients have registered.", float64(f.Bytes), "owner", f.Owner)
		counter("sluice_client_memory_requests_total", "Requests with tensors in clients' shared memory.", float64(f.Requests), "owner", f.Owner)
	}
	gauge("sluice_client_memory_references", "References that requests hold to regions.", float64(g.regions.InUse()))
}
