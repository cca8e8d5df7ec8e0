package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/proto"
)

// serviced is r with endpoints under a name of each cluster's content. Envoy makes a
// changed cluster anew and lets the old one serve until the new one has its endpoints;
// under the old name it has them already and nobody would send them again, so that the
// change would wait for a timeout, and find no endpoints then.
func (r *Resources) serviced() (*Resources, error) {
	out := *r
	out.Clusters, out.Endpoints = make(map[string]types.Resource, len(r.Clusters)), make(map[string]types.Resource, len(r.Endpoints))
	for name, resource := range r.Clusters {
		c, ok := resource.(*clusterv3.Cluster)
		e, has := r.Endpoints[name].(*endpointv3.ClusterLoadAssignment)
		if !ok || !has {
			out.Clusters[name] = resource
			continue
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		sum := sha256.Sum256(data)
		service := name + "#" + hex.EncodeToString(sum[:4])
		c, e = proto.CloneOf(c), proto.CloneOf(e)
		c.EdsClusterConfig.ServiceName, e.ClusterName = service, service
		out.Clusters[name], out.Endpoints[service] = c, e
	}
	return &out, nil
}
