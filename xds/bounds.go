package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The bounds of what is kept for Envoys. A stream that passes one is ended, and an Envoy
// comes again with what it needs.
const (
	maxStreams    = 4096      // at a time; each has some goroutines
	maxStreamSize = 8 << 20   // bytes of one stream's node and of the names it subscribed to
	maxKept       = 256 << 20 // bytes of those of all streams
	maxUnanswered = 64        // updates of a delta stream whose versions are remembered
)

// admit counts a stream that begins, or refuses it.
func (s *Server) admit(id int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams {
		return status.Errorf(codes.ResourceExhausted, "the control plane has %d streams, the most that it takes", maxStreams)
	}
	s.streams[id] = &stream{sent: map[string]string{}, names: map[string]int64{}}
	return nil
}

// keep counts what a request leaves with the server: its node and the names that it
// subscribes to. Requests of the state of the world replace a type's names; those of the
// delta protocol add to them, and what they take away is not subtracted, since nothing
// says that it was there. An error ends the stream.
func (s *Server) keep(id int64, kind string, node proto.Message, names int64, add bool) error {
	if cachev3.GetResponseType(kind) == types.UnknownType {
		return status.Errorf(codes.InvalidArgument, "type %.200q is none of the control plane's", kind)
	}
	size := int64(proto.Size(node)) // of the first message alone; 0 later
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.streams[id]
	if st == nil {
		return nil // it has ended
	}
	more := size + names
	if !add {
		more -= st.names[kind]
	}
	switch {
	case st.size+more > maxStreamSize:
		return status.Errorf(codes.ResourceExhausted, "the stream's node and names have %d bytes, at most %d are kept", st.size+more, maxStreamSize)
	case s.kept+more > maxKept:
		return status.Errorf(codes.ResourceExhausted, "the nodes and names of all streams have %d bytes, at most %d are kept", s.kept+more, maxKept)
	}
	if !add {
		st.names[kind] = 0
	}
	st.names[kind] += names
	st.size += more
	s.kept += more
	return nil
}

// leave forgets a stream that has ended.
func (s *Server) leave(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.streams[id]; st != nil {
		s.kept -= st.size
		delete(s.streams, id)
	}
}

// dropZoneLocked forgets a zone without Envoys, and says whether there was one: else the
// first maxZones names that anybody said would be all. s.mu is held.
func (s *Server) dropZoneLocked() bool {
	used := map[string]bool{"": true}
	for _, st := range s.streams {
		used[st.zone] = true
	}
	for name := range s.zones {
		if !used[name] {
			delete(s.zones, name)
			s.gone = append(s.gone, name)
			return true
		}
	}
	return false
}

// clearGone takes the snapshots of forgotten zones out of the cache. It is called by Run
// alone, which publishes them.
func (s *Server) clearGone() {
	s.mu.Lock()
	gone := s.gone
	s.gone = nil
	s.mu.Unlock()
	for _, name := range gone {
		s.cache.ClearSnapshot(name)
	}
}

// nameSize is the memory that a name costs beside its bytes: a string and a map's entry.
const nameSize = 48

func sizeOf(names []string) (n int64) {
	for _, name := range names {
		n += int64(len(name)) + nameSize
	}
	return n
}

// deltaSize is what a delta request's names cost.
func deltaSize(r *discoveryv3.DeltaDiscoveryRequest) int64 {
	n := sizeOf(r.GetResourceNamesSubscribe())
	for name, version := range r.GetInitialResourceVersions() {
		n += int64(len(name)+len(version)) + 2*nameSize
	}
	return n
}
