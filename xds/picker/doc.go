// Package picker chooses the gateway of each call: Envoy's external processor
// (envoy.service.ext_proc.v3) for v2 over HTTP and gRPC, as an endpoint picker.
//
// A call goes to a gateway that has its model ready; of those, to the one that owns its
// sequence, or that probably has its answer in the cache, or else to the one where it is
// done first by what the gateways report of queues, instances and the cost of requests.
// The choice goes back to Envoy as the header x-gateway-destination-endpoint and as
// dynamic metadata of the same name in envoy.lb, which the cluster's override_host policy
// follows. Without a choice, or without a picker, the cluster's own policy decides.
//
// State is the choice itself: a plain struct without clock, lock or I/O. Server drives
// it: it reads calls, watches each gateway's load out of band (OpenRcaService), and
// answers Envoy.
//
// Lock order: Server.mu alone.
package picker
