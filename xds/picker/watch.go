package picker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	orcasvcv3 "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-serve/sluice/proto/mesh"
	"github.com/sluice-serve/sluice/xds/orca"
)

// Run asks every gateway for its load until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	watched := map[string]watcher{}
	defer func() {
		for _, w := range watched {
			w.stop()
		}
	}()
	for {
		s.mu.Lock()
		next := make(map[string]string, len(s.places))
		for name, g := range s.places {
			if g.GRPC != "" {
				next[name] = g.GRPC
			}
		}
		s.mu.Unlock()
		for name, w := range watched {
			if next[name] != w.address {
				w.stop()
				delete(watched, name)
			}
		}
		for name, address := range next {
			if _, ok := watched[name]; ok {
				continue
			}
			inner, stop := context.WithCancel(ctx)
			watched[name] = watcher{address: address, stop: stop}
			all.Go(func() { s.watch(inner, name, address) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
		}
	}
}

// watcher follows one gateway.
type watcher struct {
	address string
	stop    context.CancelFunc
}

// The times of a watcher: how long a gateway may say nothing before it is asked anew,
// how long a connection may take until the gateway counts as gone, and the pause before
// the next try.
const (
	silence  = 2 * time.Second
	reach    = 300 * time.Millisecond
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
)

// watch follows one gateway until ctx ends. A stream that ended is opened again at once:
// only if that fails the gateway is gone, and its sequences with it.
func (s *Server) watch(ctx context.Context, name, address string) {
	pause, told := pauseMin, false
	for ctx.Err() == nil {
		reported, err := s.follow(ctx, name, address)
		if ctx.Err() != nil {
			return
		}
		if reported {
			pause, told = pauseMin, false
			continue
		}
		ended := refuses(ctx, address)
		s.mu.Lock()
		s.state.Gone(name, ended)
		s.mu.Unlock()
		if !told {
			told = true
			s.log.Warn("endpoint picker: a gateway does not report its load", "gateway", name, "address", address, "error", err)
		}
		wait, cancel := context.WithTimeout(ctx, pause)
		<-wait.Done()
		cancel()
		pause = min(2*pause, pauseMax)
	}
}

// follow takes reports, and what is told of sequences, until the stream of reports ends;
// reported says that there was a report.
func (s *Server) follow(ctx context.Context, name, address string) (reported bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := s.dial(address)
	if err != nil {
		return false, err
	}
	var placed sync.WaitGroup
	defer func() {
		cancel(nil)
		placed.Wait()
		if closing := conn.Close(); closing != nil && err == nil {
			err = closing
		}
	}()
	quiet := time.AfterFunc(reach, func() { cancel(fmt.Errorf("no answer in time")) })
	defer quiet.Stop()
	stream, err := orcasvcv3.NewOpenRcaServiceClient(conn).StreamCoreMetrics(ctx,
		&orcasvcv3.OrcaLoadReportRequest{ReportInterval: durationpb.New(s.cfg.Interval)})
	if err != nil {
		return false, err
	}
	placed.Go(func() { s.followPlaced(ctx, name, conn) })
	for {
		r, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return reported, err
		}
		quiet.Reset(max(silence, 4*s.cfg.Interval))
		load := orca.Read(r)
		s.mu.Lock()
		s.state.Report(s.now(), name, load)
		s.mu.Unlock()
		if !reported {
			s.log.Info("endpoint picker: a gateway reports its load", "gateway", name)
		}
		reported = true
	}
}

// followPlaced takes what a gateway tells of sequences until ctx ends. A gateway that can't
// tell leaves its sequences unknown to a picker that was started anew.
func (s *Server) followPlaced(ctx context.Context, name string, conn *grpc.ClientConn) {
	told := false
	for ctx.Err() == nil {
		err := s.takePlaced(ctx, name, conn)
		// Of a gateway that can't be reached its reports tell.
		if ctx.Err() == nil && !told && status.Code(err) != codes.Unavailable {
			told = true
			s.log.Warn("endpoint picker: a gateway does not tell where sequences live", "gateway", name, "error", err)
		}
		wait, cancel := context.WithTimeout(ctx, pauseMax)
		<-wait.Done()
		cancel()
	}
}

func (s *Server) takePlaced(ctx context.Context, name string, conn *grpc.ClientConn) error {
	stream, err := mesh.NewPlacementsClient(conn).StreamPlacements(ctx, &mesh.StreamPlacementsRequest{})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.state.Follow(name)
	s.mu.Unlock()
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.mu.Lock()
		for _, c := range m.GetChanges() {
			s.state.Placed(s.now(), name, c)
		}
		if m.GetComplete() {
			s.state.Told(name)
		}
		s.mu.Unlock()
	}
}

// refuses says that nothing listens at an address, so that no process of a gateway is there.
func refuses(ctx context.Context, address string) bool {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	d := net.Dialer{Timeout: reach}
	conn, err := d.DialContext(ctx, network, address)
	if err == nil {
		// Nothing was written, so that nothing can be lost.
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || network == "unix" && errors.Is(err, syscall.ENOENT)
}
