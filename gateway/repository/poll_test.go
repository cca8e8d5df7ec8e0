package repository

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// polled polls once and waits for what is loaded.
func polled(ctx context.Context, r *Repository, watch *steady) (err error) {
	looked := make(chan error, 1)
	r.poll(ctx, watch, looked)
	return <-looked
}

var update = flag.Bool("update", false, "write the transcripts again")

// TestSteadyTranscript replays looks at folders (time, folder, size of its file, age of
// the file) and holds the decisions against testdata.
func TestSteadyTranscript(t *testing.T) {
	const name = "testdata/steady.txt"
	in, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := newSteady(9 * time.Second)
	zero := time.Unix(1_000_000, 0)
	var out strings.Builder
	lines := bufio.NewScanner(strings.NewReader(string(in)))
	for lines.Scan() {
		event, _, _ := strings.Cut(lines.Text(), " -> ")
		if event == "" || event[0] == '#' {
			out.WriteString(event + "\n")
			continue
		}
		var at, size, age int64
		var folder string
		if _, err := fmt.Sscanf(event, "%ds %s size %d age %ds", &at, &folder, &size, &age); err != nil {
			t.Fatalf("%q: %v", event, err)
		}
		now := zero.Add(time.Duration(at) * time.Second)
		l := look{files: map[string]file{"1/w": {size: size}}, newest: now.Add(-time.Duration(age) * time.Second)}
		fmt.Fprintf(&out, "%s -> %s\n", event, map[bool]string{true: "read", false: "wait"}[s.still(key{name: folder}, l, now)])
	}
	if *update {
		if err := os.WriteFile(name, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(in) {
		t.Errorf("got\n%s, want\n%s", out.String(), in)
	}
}

// Whatever is written when, a folder is read only if nothing was written between two
// looks an interval apart, and always once it is left alone.
func TestSteadyAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		const interval = 5
		s := newSteady(interval * time.Second)
		now, written, content := int64(100), int64(-1000), int64(0)
		k := key{name: "m"}
		quiet := 0
		for range 100 {
			now += 1 + rnd.Int64N(6)
			if rnd.IntN(3) == 0 {
				written, content, quiet = now, content+1, 0
			}
			l := look{files: map[string]file{"w": {size: content}}, newest: time.Unix(written, 0)}
			ok := s.still(k, l, time.Unix(now, 0))
			if ok && now-written < interval {
				t.Fatalf("seed %d: read at %d what was written at %d", seed, now, written)
			}
			if quiet++; !ok && quiet > 2*interval {
				t.Fatalf("seed %d: not read at %d though left alone since %d", seed, now, written)
			}
		}
	}
}

// A poll loads what is new, reloads what has changed, unloads what is gone, and leaves
// alone what somebody is writing; a repository that can't be listed keeps its models.
func TestPoll(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	r := New(Config{Paths: []string{dir}, Mode: Poll, PollInterval: time.Nanosecond, StrictReadiness: true}, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	watch := newSteady(time.Nanosecond)
	look := func() {
		t.Helper()
		if err := polled(t.Context(), r, watch); err != nil {
			t.Error(err)
		}
	}
	look()
	if got := w.since(); got != "m/1 2" {
		t.Errorf("nothing has changed, but loads are %q", got)
	}
	write(t, dir, map[string]string{"new/config.pbtxt": identity, "new/1/w": "1", "m/2/w": "2"})
	watch.interval = time.Hour // nothing is ever still
	look()
	look()
	if got := w.since(); got != "" {
		t.Errorf("read while it is written: %q", got)
	}
	watch.interval = time.Nanosecond
	look()
	if got := index(r); got != "m 1 UNAVAILABLE: unloaded\nm 2 READY\nnew 1 READY\n" && got != "m 1 UNLOADING\nm 2 READY\nnew 1 READY\n" {
		t.Errorf("after new folders: %s", got)
	}
	w.since()
	write(t, dir, map[string]string{"m/config.pbtxt": "nonsense"})
	look()
	look()
	look()
	if ok, err := r.ModelReady("m", "2"); !ok || err != nil || w.since() != "" {
		t.Errorf("after a broken config: %v, %v", ok, err)
	}
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := polled(t.Context(), r, watch); err == nil {
		t.Error("a repository is gone and nobody says so")
	}
	if ok, _ := r.ModelReady("new", ""); !ok {
		t.Error("a repository that can't be listed lost its models")
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "new")); err != nil {
		t.Fatal(err)
	}
	look()
	if _, err := r.Acquire(t.Context(), "new", ""); err == nil {
		t.Error("a model whose folder is gone serves")
	}
	eventually(t, "forgotten", func() bool { look(); return !strings.Contains(index(r), "new") })
}

// TestPollOfAnEmptyConfig: a config that is emptied, as by a disk that was full when it was written, is not taken for one
// that wants to be completed. Who wants that removes it; one that always was empty is.
func TestPollOfAnEmptyConfig(t *testing.T) {
	const config = "backend: \"onnxruntime\"\nmax_batch_size: 4\ndynamic_batching { }\n"
	tensors := &worker.DescribeResponse{Inputs: []*worker.TensorInfo{info("X", configpb.DataType_TYPE_FP32, -1, 2)},
		Outputs: []*worker.TensorInfo{info("Y", configpb.DataType_TYPE_FP32, -1, 2)}}
	w := &fakeWorkers{desc: map[string]*worker.DescribeResponse{"m": tensors, "silent": tensors}}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "1", "silent/config.pbtxt": "", "silent/1/model.onnx": "1"})
	r := New(Config{Paths: []string{dir}, Mode: Poll, PollInterval: time.Nanosecond, StrictReadiness: true}, deps(w))
	if err := r.LoadAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	watch := newSteady(time.Nanosecond)
	look := func() {
		t.Helper()
		for range 3 {
			if err := polled(t.Context(), r, watch); err != nil {
				t.Error(err)
			}
		}
	}
	w.since()
	for _, text := range []string{"", " \n", "# nothing\n"} {
		write(t, dir, map[string]string{"m/config.pbtxt": text})
		look()
		if got := index(r); w.since() != "" || !strings.Contains(got, "m 1 READY") || !strings.Contains(got, "config.pbtxt says nothing") {
			t.Errorf("emptied to %q: %s", text, got)
		}
	}
	write(t, dir, map[string]string{"m/config.pbtxt": config})
	look()
	if got := index(r); w.since() != "" || !strings.Contains(got, "m 1 READY\n") {
		t.Errorf("as it was: %s", got)
	}
	write(t, dir, map[string]string{"silent/1/model.onnx": "another"})
	look()
	if got := w.since(); !strings.HasPrefix(got, "silent/1") {
		t.Errorf("a model whose config always was empty: loads are %q", got)
	}
	if err := os.Remove(filepath.Join(dir, "m/config.pbtxt")); err != nil {
		t.Fatal(err)
	}
	look()
	if got := w.since(); !strings.HasPrefix(got, "m/1") {
		t.Errorf("removed: loads are %q", got)
	}
}

// A file that changes under a load in poll mode makes it worthless.
func TestTornLoad(t *testing.T) {
	w := &fakeWorkers{}
	dir := write(t, t.TempDir(), map[string]string{"m/config.pbtxt": identity, "m/1/w": "1"})
	w.fail = func(_ LoadSpec, try int) error {
		if try == 1 {
			write(t, dir, map[string]string{"m/1/w": "half"})
		}
		return nil
	}
	r := New(Config{Paths: []string{dir}, Mode: Poll}, deps(w))
	if err := r.LoadAll(t.Context()); err == nil || !strings.Contains(err.Error(), "changed while they were read") {
		t.Errorf("got %v", err)
	}
	if w.loaded["m/1"].unloaded.Load() == 0 {
		eventually(t, "freed", func() bool { return w.loaded["m/1"].unloaded.Load() == 1 })
	}
	if err := polled(t.Context(), r, newSteady(0)); err != nil || index(r) != "m 1 READY\n" {
		t.Errorf("the next look: %v, %s", err, index(r))
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
