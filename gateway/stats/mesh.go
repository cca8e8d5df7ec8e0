package stats

// MeshFigures are those of the control plane inside the gateway at one moment.
type MeshFigures struct {
	Envoys   int    // connected
	Rejected uint64 // updates that Envoys refused
	Held     int    // routes that wait for their targets to be ready
}

// Mesh says where the figures of the control plane come from; it is called before
// anything is scraped.
func (r *Registry) Mesh(figures func() MeshFigures) { r.mesh = figures }

func (w writer) collectMesh(f MeshFigures) {
	w.gauge("sluice_xds_envoys", "Envoys connected to the control plane.", float64(f.Envoys))
	w.counter("sluice_xds_rejected_updates_total", "Updates that Envoys refused, keeping what they had.", float64(f.Rejected))
	w.gauge("sluice_xds_held_routes", "Routes that wait for their new targets to be ready on every gateway.", float64(f.Held))
}
