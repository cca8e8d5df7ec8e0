package xds

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
)

// callbacks note who is connected, what each Envoy took, and what it refused.
type callbacks struct{ s *Server }

func (c callbacks) closed(id int64) {
	c.s.leave(id)
	c.s.nudge()
}

// answered notes an Envoy's answer to an update of clusters: the version it took.
func (c callbacks) answered(id int64, kind, took string) {
	if kind != resource.ClusterType || took == "" {
		return
	}
	c.s.mu.Lock()
	if st := c.s.streams[id]; st != nil {
		st.took = took
	}
	c.s.mu.Unlock()
	c.s.nudge()
}

// refused tells loudly which Envoy refused what; it says its name in its first message
// alone.
func (c callbacks) refused(id int64, kind string, why *status.Status) {
	c.s.mu.Lock()
	c.s.rejected++
	node := ""
	if st := c.s.streams[id]; st != nil {
		node = st.node
	}
	c.s.mu.Unlock()
	c.s.log.Error("control plane: an Envoy refused an update and keeps what it had", "node", node, "type", kind, "error", why.GetMessage())
}

// OnStreamOpen is called when an Envoy connects; an error ends the stream.
func (c callbacks) OnStreamOpen(_ context.Context, id int64, _ string) error { return c.s.admit(id) }

// OnStreamClosed is called when it is gone.
func (c callbacks) OnStreamClosed(id int64, _ *corev3.Node) { c.closed(id) }

// OnStreamRequest is called for each subscription, and each answer to an update; an error
// ends the stream.
func (c callbacks) OnStreamRequest(id int64, r *discoveryv3.DiscoveryRequest) error {
	if err := c.s.keep(id, r.GetTypeUrl(), r.GetNode(), sizeOf(r.GetResourceNames()), false); err != nil {
		return err
	}
	c.s.joined(id, r.GetNode())
	if r.GetErrorDetail() != nil {
		c.refused(id, r.GetTypeUrl(), r.GetErrorDetail())
		return nil
	}
	c.answered(id, r.GetTypeUrl(), r.GetVersionInfo())
	return nil
}

// OnStreamResponse is called for each update.
func (c callbacks) OnStreamResponse(context.Context, int64, *discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {
}

// OnDeltaStreamOpen is OnStreamOpen for the delta protocol.
func (c callbacks) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	return c.s.admit(deltaID(id))
}

// OnDeltaStreamClosed is OnStreamClosed for the delta protocol.
func (c callbacks) OnDeltaStreamClosed(id int64, _ *corev3.Node) { c.closed(deltaID(id)) }

// OnStreamDeltaRequest is OnStreamRequest for the delta protocol.
func (c callbacks) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	id = deltaID(id)
	if err := c.s.keep(id, r.GetTypeUrl(), r.GetNode(), deltaSize(r), true); err != nil {
		return err
	}
	c.s.joined(id, r.GetNode())
	c.s.mu.Lock()
	took := ""
	if st := c.s.streams[id]; st != nil {
		took = st.sent[r.GetResponseNonce()]
		delete(st.sent, r.GetResponseNonce())
	}
	c.s.mu.Unlock()
	if r.GetErrorDetail() != nil {
		c.refused(id, r.GetTypeUrl(), r.GetErrorDetail())
		return nil
	}
	c.answered(id, r.GetTypeUrl(), took)
	return nil
}

// OnStreamDeltaResponse is OnStreamResponse for the delta protocol.
func (c callbacks) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	if r.GetTypeUrl() != resource.ClusterType {
		return
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if st := c.s.streams[deltaID(id)]; st != nil {
		if len(st.sent) >= maxUnanswered { // by then it answers nothing, and what it took is not known
			clear(st.sent)
		}
		st.sent[r.GetNonce()] = r.GetSystemVersionInfo()
	}
}

// OnFetchRequest is called for the REST protocol, which is not served.
func (c callbacks) OnFetchRequest(context.Context, *discoveryv3.DiscoveryRequest) error { return nil }

// OnFetchResponse is called for the REST protocol, which is not served.
func (c callbacks) OnFetchResponse(*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse) {}

// deltaID keeps the ids of both protocols apart; both count from 1.
func deltaID(id int64) int64 { return -id }
