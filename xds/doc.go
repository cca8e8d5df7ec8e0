// Package xds is the control plane: it tells Envoy where the gateways are and how calls
// reach them.
//
// A Topology says it all in plain values. Build makes the resources of Envoy out of it,
// without state, clock or I/O; Switch holds a route back until its new targets are
// ready; Rollout decides what Envoy is told when, so that nothing is taken away while
// it is in use. A Server drives them and serves the aggregated discovery service, state
// of the world and delta; other services that Envoy calls (authorization, rate limits,
// endpoint picker) are registered on the same gRPC server.
//
// xds/fleet watches gateways and files and feeds a Server. The gateway runs one for
// --xds-port, `sluice xds` runs one for a fleet.
//
// Lock order: Server.setting, then Server.mu, which comes before the locks of the snapshot cache. Callbacks of the
// gRPC server take Server.mu alone.
package xds
