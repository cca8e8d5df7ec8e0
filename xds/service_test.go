package xds

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
)

// A cluster that changes asks for endpoints under a new name, and has them; one that does
// not keeps its name.
func TestChangedClustersAskAnew(t *testing.T) {
	service := func(balance string, ready bool) string {
		t.Helper()
		top := &Topology{Gateways: []Gateway{{Name: "g", HTTP: "127.0.0.1:1", GRPC: "127.0.0.1:2", Ready: ready}},
			Upstream: Upstream{Balance: balance}}
		r, err := Build(top, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err = r.serviced(); err != nil {
			t.Fatal(err)
		}
		name := r.Clusters["http/default"].(*clusterv3.Cluster).EdsClusterConfig.ServiceName
		if r.Endpoints[name] == nil || len(r.Endpoints) != 2 {
			t.Errorf("no endpoints of that name among %d: %s", len(r.Endpoints), name)
		}
		return name
	}
	first, same, other := service(BalanceRoundRobin, true), service(BalanceRoundRobin, false), service(BalanceLeastRequest, true)
	if first != same || first == other {
		t.Errorf("names %s, %s with other endpoints, %s with another policy", first, same, other)
	}
}
