package grpcapi

import (
	"context"
	flags "flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

var update = flags.Bool("update", false, "write testdata/methods.txt")

// paths are those of all methods that the server has.
func paths(t *testing.T, r *rig) []string {
	t.Helper()
	services, ok := r.server.transport.(interface {
		GetServiceInfo() map[string]grpc.ServiceInfo
	})
	if !ok {
		t.Fatalf("%T does not say what services it has", r.server.transport)
	}
	var all []string
	for service, info := range services.GetServiceInfo() {
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	slices.Sort(all)
	return all
}

// idle is a Load of nothing.
type idle struct{}

func (idle) Trailer(string) (key, value string) { return "", "" }
func (idle) Full() *orcav3.OrcaLoadReport       { return &orcav3.OrcaLoadReport{} }

// TestEveryMethod: each method of the server, whoever registered it, asks the pipeline
// before anything, once, and says what it is. What all methods are is in
// testdata/methods.txt, which the end-to-end test of rights reads.
func TestEveryMethod(t *testing.T) {
	r := start(t, func(_ *Config, r *rig) { r.load = idle{} })
	r.pipeline.open = func(context.Context, *infer.Envelope) error {
		return infer.Refusef(infer.Unauthenticated, infer.ReasonUnauthenticated, "who are you")
	}
	var lines strings.Builder
	for _, path := range paths(t, r) {
		var want infer.Envelope
		if path == "/grpc.health.v1.Health/List" { // not there: it answers UNIMPLEMENTED to everybody
			continue
		}
		if !Describe(path, &want) {
			t.Errorf("%s is not described", path)
			continue
		}
		fmt.Fprintf(&lines, "%s %s %t\n", path, want.Action, want.Change)
		before := r.pipeline.opened.Load()
		stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(&emptypb.Empty{}) // the answer tells what became of it
		_ = stream.CloseSend()
		if err := stream.RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v, want Unauthenticated", path, err)
		}
		if n := r.pipeline.opened.Load() - before; n != 1 {
			t.Errorf("%s: the pipeline was asked %d times", path, n)
			continue
		}
		got := r.pipeline.lastEnvelope()
		if got.Action != want.Action || got.Method != want.Method || got.Change != want.Change || got.Protocol != "grpc" {
			t.Errorf("%s: %+v, described as %+v", path, got, want)
		}
	}
	name := filepath.Join("testdata", "methods.txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(name); err != nil || string(want) != lines.String() {
		t.Errorf("%s is out of date (-update writes it): %v\n%s", name, err, lines.String())
	}
	r.settled(t)
}

// TestListsAreFiltered: the index and the statistics show what the caller may see.
func TestListsAreFiltered(t *testing.T) {
	r := start(t)
	for _, visible := range []bool{true, false} {
		r.pipeline.visible = func(string) bool { return visible }
		index, err := r.client.RepositoryIndex(t.Context(), &inference.RepositoryIndexRequest{})
		if err != nil || (len(index.Models) > 0) != visible {
			t.Errorf("visible %t: %v, %v", visible, index, err)
		}
		stats, err := r.client.ModelStatistics(t.Context(), &inference.ModelStatisticsRequest{Name: "m"})
		if err != nil || (len(stats.ModelStats) > 0) != visible {
			t.Errorf("visible %t: %v, %v", visible, stats, err)
		}
	}
}
