package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resources are what Envoy is told, by kind and name. They are not changed once made.
type Resources struct {
	Clusters, Endpoints, Secrets, Routes, Listeners map[string]types.Resource
}

// Secrets are the contents of the PEM files that a Topology names, by path.
type Secrets map[string][]byte

// Build makes the resources for an Envoy in a zone out of t. The same t gives the same
// resources, byte for byte. Faults of t that Validate does not see (a gateway's address
// that is no IP address, a PEM file that secrets has not) are its errors.
func Build(t *Topology, zone string, secrets Secrets) (*Resources, error) {
	b := &builder{t: t, up: t.Upstream.filled(), zone: zone, secrets: secrets, out: &Resources{Clusters: map[string]types.Resource{},
		Endpoints: map[string]types.Resource{}, Secrets: map[string]types.Resource{}, Routes: map[string]types.Resource{},
		Listeners: map[string]types.Resource{}}}
	b.services()
	b.routes()
	b.listeners()
	if err := errors.Join(b.errs...); err != nil {
		return nil, err
	}
	return b.out, b.out.validate()
}

// builder gathers the resources of one Build.
type builder struct {
	t       *Topology
	up      Upstream
	zone    string
	secrets Secrets
	out     *Resources
	errs    []error
}

func (b *builder) fail(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

// packed is m as Envoy's extension points want it.
func (b *builder) packed(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		b.fail("%T: %w", m, err)
	}
	return out
}

// kinds are r's maps in the order in which Envoy wants to be told.
func (r *Resources) kinds() []map[string]types.Resource {
	return []map[string]types.Resource{r.Clusters, r.Endpoints, r.Secrets, r.Routes, r.Listeners}
}

// validate checks each resource by the rules in its own proto.
func (r *Resources) validate() error {
	var errs []error
	for _, kind := range r.kinds() {
		for _, name := range slices.Sorted(maps.Keys(kind)) {
			if v, ok := kind[name].(interface{ ValidateAll() error }); ok {
				if err := v.ValidateAll(); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// version is a name for what a kind holds: the same for the same content.
func version(kind map[string]types.Resource) (string, error) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(kind)) {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(kind[name])
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(h, "%d %s %d ", len(name), name, len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// snapshot is r as the cache serves it.
func (r *Resources) snapshot() (*cachev3.Snapshot, error) {
	r, err := r.serviced()
	if err != nil {
		return nil, err
	}
	s := &cachev3.Snapshot{}
	for i, t := range []types.ResponseType{types.Cluster, types.Endpoint, types.Secret, types.Route, types.Listener} {
		kind := r.kinds()[i]
		v, err := version(kind)
		if err != nil {
			return nil, err
		}
		s.Resources[t] = cachev3.Resources{Version: v, Items: make(map[string]types.ResourceWithTTL, len(kind))}
		for name, resource := range kind {
			s.Resources[t].Items[name] = types.ResourceWithTTL{Resource: resource}
		}
	}
	return s, s.Consistent()
}

// Equal says that both hold the same resources of the same content.
func (r *Resources) Equal(o *Resources) bool {
	for i, kind := range r.kinds() {
		if !maps.EqualFunc(kind, o.kinds()[i], func(a, b types.Resource) bool { return a == b || proto.Equal(a, b) }) {
			return false
		}
	}
	return true
}

// union is newer with everything that only older has.
func union(older, newer map[string]types.Resource) map[string]types.Resource {
	all := maps.Clone(older)
	maps.Copy(all, newer)
	return all
}
