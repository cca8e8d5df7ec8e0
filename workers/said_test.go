package workers_test

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/identity"
)

// What a backend says of itself reaches the gateway whole; GPUs only where the worker has one.
func TestHelloSaysAllOfBackend(t *testing.T) {
	s := &scripted{info: backend.Info{Version: "7", GPU: true, OpenRequests: 9, WholeBatches: true, Ragged: true, UnbatchedOptional: true, Patches: true,
		Placements: []*worker.Placement{{Kind: worker.Placement_MODEL, Count: 3}}, Memory: []worker.MemoryKind{worker.MemoryKind_DEVICE},
		Formats:  []*worker.ModelFormat{{Platform: "p", Filename: "model.p", Kind: worker.ModelFormat_FOLDER, Default: true}},
		Runtimes: []*worker.Runtime{{File: "lib_<name>.so", Shared: true}}}}
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 4<<20)
	want := &worker.Backend{Name: "identity", Version: "7", OpenRequests: 9, WholeBatches: true, Ragged: true, UnbatchedOptional: true, Patches: true,
		Placements: s.info.Placements, Memory: s.info.Memory, Formats: s.info.Formats, Runtimes: s.info.Runtimes}
	if h := g.hello(t, true); len(h.Backends) != 1 || !proto.Equal(h.Backends[0], want) {
		t.Errorf("got %v, want %v", h.Backends, want)
	}
}

// Which backend runs a model: the gateway's word, the config's backend, or its platform.
func TestBackendOfModel(t *testing.T) {
	s := &scripted{info: backend.Info{Formats: []*worker.ModelFormat{{Filename: "model.q"}, {Platform: "p_plan", Filename: "model.p"}}}, patch: &worker.ConfigPatch{MaxBatchSize: proto.Int32(8)}}
	g := startLocal(t, workers.Config{}, workers.Deps{Backends: map[string]backend.Factory{"identity": identity.New, "host": s.factory}}, 4<<20)
	g.hello(t, true)
	for i, row := range []struct {
		name, backend, platform string
		options                 *worker.BackendOptions
		want                    int // models that the backend host has then
		code                    codes.Code
	}{
		{"its backend", "host", "", nil, 1, codes.OK},
		{"another's", "identity", "", nil, 1, codes.OK},
		{"its platform", "", "p_plan", nil, 2, codes.OK},
		{"nobody's platform", "", "q_plan", nil, 2, codes.InvalidArgument},
		{"from a file", "other", "", &worker.BackendOptions{Runtime: "host", File: "/b/other/lib.so"}, 3, codes.OK},
		{"from no file", "other", "", nil, 3, codes.InvalidArgument},
		{"from a file elsewhere", "other", "", &worker.BackendOptions{Runtime: "host", File: "/b/../lib.so"}, 3, codes.InvalidArgument},
		{"from a relative file", "other", "", &worker.BackendOptions{Runtime: "host", File: "lib.so"}, 3, codes.InvalidArgument},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := loadRequest(uint64(i+1), fp32Config(nil), uint32(i))
			r.Config.Backend, r.Config.Platform, r.Options = row.backend, row.platform, row.options
			_, err := g.client.Load(ctx(t), r)
			wantCode(t, "load", err, row.code)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.loads != row.want {
				t.Errorf("the backend has loaded %d models, want %d", s.loads, row.want)
			}
			if file := s.specs[len(s.specs)-1].BackendFile; err == nil && file != row.options.GetFile() && row.backend == "other" {
				t.Errorf("the backend's file is %q, want %q", file, row.options.GetFile())
			}
		})
	}
	config := fp32Config(nil)
	config.Backend = "other"
	d := must(g.client.Describe(ctx(t), &worker.DescribeRequest{Backend: "host", ModelFile: "/r/m/1/x", Config: config,
		Options: &worker.BackendOptions{Runtime: "host", File: "/b/other/lib.so"}}))(t)
	if d.GetPatch().GetMaxBatchSize() != 8 || s.specs[len(s.specs)-1].BackendFile != "/b/other/lib.so" {
		t.Errorf("Describe: %v of %+v", d, s.specs)
	}
}

// The requests of a batch are not executed one by one where the backend wants it whole.
func TestWholeBatches(t *testing.T) {
	s := &scripted{info: backend.Info{WholeBatches: true}}
	var cut atomic.Int64
	s.execute.Store(func(b backend.Batch) error {
		if len(b.Requests()) != 2 {
			cut.Add(1)
		}
		return echo(b)
	})
	g := startLocal(t, workers.Config{}, scriptedDeps(s), 16<<20)
	g.hello(t, true)
	g.load(t, loadRequest(1, fp32Config(nil), 0))
	for id := range uint64(12) {
		b, data := apartBatch(id, 1, 2)
		p := g.layOut(t, b, data...)
		g.post(0, p)
		c, res := g.result(t)
		if answers := g.answersOf(t, b, res); res.Err != "" || answers[1] != string(data[1]) {
			t.Fatalf("batch %d: %+v", id, res)
		}
		g.lane.Release(c.Token)
		g.requests.Free(p.mem)
		for _, seg := range b.Inputs[0].Segments {
			g.requests.FreeAt(seg.Offset)
		}
	}
	if n := cut.Load(); n > 0 {
		t.Errorf("%d of 12 batches were cut", n)
	}
}
