package xds

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	rpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// numbered are n resource names of 100 bytes.
func numbered(from, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("name-%0.95d", from+i)
	}
	return all
}

// TestStreamsAreBounded ends streams that would have the server keep too much.
func TestStreamsAreBounded(t *testing.T) {
	metadata, err := structpb.NewStruct(map[string]any{"a": strings.Repeat("x", 3<<20)})
	if err != nil {
		t.Fatal(err)
	}
	node := func(m *structpb.Struct) *corev3.Node { return &corev3.Node{Id: "test", Metadata: m} }
	world := func(client discoveryv3.AggregatedDiscoveryServiceClient, all ...*discoveryv3.DiscoveryRequest) error {
		stream, err := client.StreamAggregatedResources(bounded(t))
		if err != nil {
			return err
		}
		for _, r := range all {
			if err := stream.Send(r); err != nil && err != io.EOF {
				return err
			}
		}
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	delta := func(client discoveryv3.AggregatedDiscoveryServiceClient, all ...*discoveryv3.DeltaDiscoveryRequest) error {
		stream, err := client.DeltaAggregatedResources(bounded(t))
		if err != nil {
			return err
		}
		for _, r := range all {
			if err := stream.Send(r); err != nil && err != io.EOF {
				return err
			}
		}
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for _, row := range []struct {
		name string
		do   func(client discoveryv3.AggregatedDiscoveryServiceClient) error
		want codes.Code
	}{
		{"type that is none", func(c discoveryv3.AggregatedDiscoveryServiceClient) error {
			return world(c, &discoveryv3.DiscoveryRequest{Node: node(nil), TypeUrl: "type.googleapis.com/nonesuch"})
		}, codes.InvalidArgument},
		{"type that is none, delta", func(c discoveryv3.AggregatedDiscoveryServiceClient) error {
			return delta(c, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: "type.googleapis.com/nonesuch"})
		}, codes.InvalidArgument},
		{"nodes", func(c discoveryv3.AggregatedDiscoveryServiceClient) error {
			r := &discoveryv3.DiscoveryRequest{Node: node(metadata), TypeUrl: resource.ClusterType}
			return world(c, r, r, r)
		}, codes.ResourceExhausted},
		{"names", func(c discoveryv3.AggregatedDiscoveryServiceClient) error {
			return world(c, &discoveryv3.DiscoveryRequest{Node: node(nil), TypeUrl: resource.EndpointType, ResourceNames: numbered(0, 30000)},
				&discoveryv3.DiscoveryRequest{TypeUrl: resource.RouteType, ResourceNames: numbered(0, 30000)})
		}, codes.ResourceExhausted},
		{"names, delta", func(c discoveryv3.AggregatedDiscoveryServiceClient) error {
			return delta(c, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: resource.EndpointType, ResourceNamesSubscribe: numbered(0, 30000)},
				&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: numbered(30000, 30000)})
		}, codes.ResourceExhausted},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, client := serve(t)
			if _, err := s.Set(topologyOf(ready("a", "127.0.0.1:1", "127.0.0.1:2")), nil); err != nil {
				t.Fatal(err)
			}
			if err := row.do(client); rpcstatus.Code(err) != row.want {
				t.Errorf("the stream ended with %.300v, want %v", err, row.want)
			}
			eventually(t, "nothing is kept", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.streams) == 0 && s.kept == 0
			})
		})
	}
}

// TestTooManyStreams refuses more streams than can be served, and takes others again.
func TestTooManyStreams(t *testing.T) {
	s, client := serve(t)
	for id := range int64(maxStreams) {
		if err := (callbacks{s}).OnStreamOpen(t.Context(), id+1000, ""); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := client.StreamAggregatedResources(bounded(t))
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want %v", err, codes.ResourceExhausted)
	}
	for id := range int64(maxStreams) {
		(callbacks{s}).OnStreamClosed(id+1000, nil)
	}
	if envoys, _ := s.Counts(); envoys != 0 {
		t.Errorf("%d streams are counted", envoys)
	}
}

// TestUnansweredUpdates keeps few versions for a delta stream that answers nothing.
func TestUnansweredUpdates(t *testing.T) {
	s := New(quick(), Deps{})
	c := callbacks{s}
	if err := c.OnDeltaStreamOpen(t.Context(), 1, ""); err != nil {
		t.Fatal(err)
	}
	for i := range 10000 {
		c.OnStreamDeltaResponse(1, nil, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: resource.ClusterType, Nonce: fmt.Sprint(i), SystemVersionInfo: fmt.Sprint(i)})
	}
	if n := len(s.streams[-1].sent); n > maxUnanswered {
		t.Errorf("%d versions are kept", n)
	}
	if err := c.OnStreamDeltaRequest(1, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType, ResponseNonce: "9999"}); err != nil {
		t.Fatal(err)
	}
	if took := s.streams[-1].took; took != "9999" {
		t.Errorf("took %q, want the version of the last update", took)
	}
}

// hostile are Envoys that mean harm; each ends with ctx.
var hostile = map[string]func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient){
	"refuses all": func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
		stream, err := client.StreamAggregatedResources(ctx)
		if err != nil {
			return
		}
		r := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "refuses"}, TypeUrl: resource.ClusterType}
		for stream.Send(r) == nil {
			got, err := stream.Recv()
			if err != nil {
				return
			}
			r = &discoveryv3.DiscoveryRequest{TypeUrl: got.TypeUrl, ResponseNonce: got.Nonce,
				ErrorDetail: &status.Status{Code: 3, Message: strings.Repeat("no", 5000)}}
		}
	},
	"reads nothing": func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
		stream, err := client.StreamAggregatedResources(ctx)
		for i := 0; err == nil && ctx.Err() == nil && i < 2000; i++ {
			err = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "slow"}, TypeUrl: resource.ClusterType, ResourceNames: numbered(i, 5)})
		}
		<-ctx.Done()
	},
	"old nonces": func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
		stream, err := client.DeltaAggregatedResources(ctx)
		for i := 0; err == nil && ctx.Err() == nil; i++ {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "old"}, TypeUrl: resource.ClusterType,
				ResponseNonce: fmt.Sprint(i % 7), ResourceNamesSubscribe: numbered(i%100, 1), ResourceNamesUnsubscribe: numbered(i%100, 1)})
		}
	},
	"many names": func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
		all := numbered(0, 100000)
		for ctx.Err() == nil {
			stream, err := client.StreamAggregatedResources(ctx)
			if err != nil {
				return
			}
			for err == nil {
				if err = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "names"}, TypeUrl: resource.EndpointType, ResourceNames: all}); err == nil {
					_, err = stream.Recv()
				}
			}
		}
	},
	"comes and goes": func(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) {
		for i := 0; ctx.Err() == nil; i++ {
			own, cancel := context.WithCancel(ctx)
			if stream, err := client.StreamAggregatedResources(own); err == nil {
				node := &corev3.Node{Id: "comes", Locality: &corev3.Locality{Zone: fmt.Sprint("zone", i)}}
				_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: resource.ClusterType}) // it may have ended
			}
			<-time.After(time.Millisecond)
			cancel()
		}
	},
}

// TestHostileEnvoys changes the topology fifty times while others storm: an Envoy that
// means well sees the last one, and nothing is left of the others.
func TestHostileEnvoys(t *testing.T) {
	for name := range hostile {
		t.Run(name, func(t *testing.T) { amongHostile(t, name) })
	}
	t.Run("all", func(t *testing.T) { amongHostile(t, slices.Collect(maps.Keys(hostile))...) })
}

func amongHostile(t *testing.T, kinds ...string) {
	s, client := serve(t)
	s.cfg.MaxSettle = 100 * time.Millisecond // who never takes clusters holds the routes of its zone for so long
	s.zones[""].rollout = NewRollout(s.cfg)
	if _, err := s.Set(topologyOf(ready("first", "127.0.0.1:1", "127.0.0.1:2")), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var storm sync.WaitGroup
	for _, kind := range kinds {
		for range 3 {
			storm.Go(func() { hostile[kind](ctx, client) })
		}
	}
	good, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := good.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "good"}, TypeUrl: resource.ClusterType}); err != nil {
		t.Fatal(err)
	}
	changed := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 50 && err == nil; i++ {
			<-time.After(20 * time.Millisecond)
			other := ready("other", "127.0.0.1:3", "127.0.0.1:4")
			other.Group = fmt.Sprint("group", i)
			next := topologyOf(ready("first", "127.0.0.1:1", "127.0.0.1:2"), other)
			next.Routes = []Route{{Model: "m", Targets: []Target{{Group: other.Group}}}}
			_, err = s.Set(next, nil)
		}
		changed <- err
	}()
	for seen := false; !seen; {
		got, err := good.Recv()
		if err != nil {
			t.Fatalf("the last topology did not come: %v", err)
		}
		for _, r := range got.Resources {
			seen = seen || strings.Contains(string(r.Value), "group49")
		}
		if err := good.Send(&discoveryv3.DiscoveryRequest{TypeUrl: got.TypeUrl, VersionInfo: got.VersionInfo, ResponseNonce: got.Nonce}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	cancel()
	storm.Wait()
	eventually(t, "no stream is left", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.streams) == 0 && len(s.zones) <= maxZones
	})
}

// TestZonesAreGivenBack lets an Envoy have its zone after others had all that there are.
func TestZonesAreGivenBack(t *testing.T) {
	s := New(quick(), Deps{})
	come := func(id int64, zone string) {
		t.Helper()
		if err := s.admit(id); err != nil {
			t.Fatal(err)
		}
		s.joined(id, &corev3.Node{Locality: &corev3.Locality{Zone: zone}})
	}
	for i := range int64(2 * maxZones) {
		come(i+1, fmt.Sprint("zone", i))
		if i < maxZones-2 || i%2 == 0 {
			s.leave(i + 1)
		}
	}
	come(1000, "east")
	if s.zones["east"] == nil || s.streams[1000].zone != "east" || len(s.zones) > maxZones {
		t.Errorf("%d zones, and that of the last Envoy is %q", len(s.zones), s.streams[1000].zone)
	}
	for id := range s.streams {
		if z := s.streams[id].zone; s.zones[z] == nil {
			t.Errorf("the zone %q has an Envoy and is gone", z)
		}
	}
}
