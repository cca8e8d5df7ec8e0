package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// run is a Tracer whose Run is ended, and waited for, by stop.
type run struct {
	*Tracer
	file string
	log  bytes.Buffer
	stop func()
}

// start makes a tracer that writes to a file of the test's and runs it.
func start(t *testing.T, s Settings) *run {
	t.Helper()
	if s.File == "" {
		s.File = filepath.Join(t.TempDir(), "t.json")
	}
	r := &run{file: s.File}
	r.Tracer = New(s, Deps{Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// on are settings that trace every request.
func on() Settings { return Settings{Level: infer.TraceTimestamps, Rate: 1, Count: -1} }

// request is one request from beginning to end; false: it was not sampled.
func (r *run) request(model, id string) bool {
	t := r.Sample(model, id)
	if t == nil {
		return false
	}
	finish(t)
	return true
}

func finish(t *infer.Trace) {
	t.Start, t.Version = 10, "1"
	t.Mark("HTTP_RECV_START", 5)
	t.Mark("HTTP_SEND_END", 90)
	t.Times = infer.Times{QueueStart: 11, ComputeStart: 12, ComputeInputEnd: 13, ComputeOutputStart: 14, ComputeEnd: 15, RequestEnd: 16}
	t.End()
}

// element is any element of a trace file.
type element struct {
	ID           uint64 `json:"id"`
	Parent       uint64 `json:"parent_id"`
	ModelName    string `json:"model_name"`
	ModelVersion int64  `json:"model_version"`
	RequestID    string `json:"request_id"`
	Timestamps   []struct {
		Name string
		NS   int64
	}
	Activity string
	Tensor   struct{ Name, Data, Shape, Dtype string }
}

func read(t *testing.T, name string) []element {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []element
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, data)
	}
	return all
}

// ids are the traces of a file, in order of their names.
func ids(t *testing.T, name string) (ids []uint64) {
	t.Helper()
	for _, e := range read(t, name) {
		if e.ModelName != "" {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func TestFormat(t *testing.T) {
	r := start(t, Settings{Level: infer.TraceTimestamps | infer.TraceTensors, Rate: 1, Count: -1})
	tr := r.Sample("ensemble", "r1")
	tr.Tensor(infer.TraceQueueInput, []infer.Tensor{{Name: "IN", Datatype: infer.Int32, Shape: []int64{1, 2}, Data: []byte{1, 0, 0, 0, 255, 255, 255, 255}}})
	tr.Tensor(infer.TraceBackendOutput, []infer.Tensor{{Name: "OUT", Datatype: infer.Bytes, Shape: []int64{2}, Data: []byte("\x01\x00\x00\x00a\x02\x00\x00\x00\"b")}})
	step := tr.Child("step", "r1")
	step.Tensor(infer.TraceQueueInput, []infer.Tensor{{Name: "in", Datatype: infer.Bool, Shape: []int64{1}, Data: []byte{1}}})
	finish(step)
	finish(tr)
	r.stop()
	data, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	base := read(t, r.file)[0].Timestamps[0].NS - 5
	text := strings.ReplaceAll(string(data), "},{\"id\"", "},\n{\"id\"")
	text = regexp.MustCompile(`"ns":\d+`).ReplaceAllStringFunc(text, func(s string) string {
		ns, err := strconv.ParseInt(strings.TrimPrefix(s, `"ns":`), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`"ns":start+%d`, ns-base)
	})
	golden(t, "format.txt", text+"\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

// What clients choose can't break the file, unlike in the original.
func TestHostileTexts(t *testing.T) {
	hostile := "a\"}],\n\\\u2028\x00\xff{<&>"
	want := "a\"}],\n\\\u2028\x00\ufffd{<&>"
	r := start(t, Settings{Level: infer.TraceTimestamps | infer.TraceTensors, Rate: 1, Count: -1})
	tr := r.Sample(hostile, hostile)
	tr.Version = hostile
	tr.Start = 1
	data := append([]byte{byte(len(hostile)), 0, 0, 0}, hostile...)
	tr.Tensor(infer.TraceQueueInput, []infer.Tensor{{Name: hostile, Datatype: infer.Bytes, Shape: []int64{1}, Data: data}})
	tr.Mark(hostile, 7)
	tr.End()
	r.stop()
	var names, tensors int
	for _, e := range read(t, r.file) {
		switch {
		case e.ModelName != "":
			names++
			if e.ModelName != want || e.RequestID != want || e.ModelVersion != -1 {
				t.Errorf("got %+v", e)
			}
		case e.Activity != "":
			tensors++
			if e.Tensor.Name != want || e.Tensor.Data != `"`+strings.ReplaceAll(want, `"`, `""`)+`"` {
				t.Errorf("got %+v", e)
			}
		}
	}
	if names != 1 || tensors != 1 {
		t.Errorf("%d names, %d tensors", names, tensors)
	}
}

func TestElements(t *testing.T) {
	for _, c := range []struct {
		d    infer.Datatype
		data []byte
		want string
	}{
		{infer.Bool, []byte{0, 1}, "0,1"},
		{infer.Uint8, []byte{0, 255}, "0,255"},
		{infer.Int8, []byte{0, 255}, "0,-1"},
		{infer.Uint16, []byte{255, 255}, "65535"},
		{infer.Int16, []byte{255, 255}, "-1"},
		{infer.Uint32, []byte{255, 255, 255, 255}, "4294967295"},
		{infer.Int64, bytes.Repeat([]byte{255}, 8), "-1"},
		{infer.Uint64, bytes.Repeat([]byte{255}, 8), "18446744073709551615"},
		{infer.FP16, []byte{0, 0x3c, 0, 0xc4, 1, 0, 0, 0x7c}, "1,-4,5.9604645e-08,+Inf"},
		{infer.BF16, []byte{0x80, 0x3f, 0x00, 0xc0}, "1,-2"},
		{infer.FP32, []byte{0, 0, 128, 63, 205, 204, 204, 61}, "1,0.1"},
		{infer.FP64, []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, "1.5"},
		{infer.Bytes, []byte("\x00\x00\x00\x00\x02\x00\x00\x00ab"), `"","ab"`},
		{infer.Bytes, []byte("\x09\x00\x00\x00ab"), ""},
		{infer.FP32, nil, ""},
	} {
		if got := dataText(c.d, c.data); got != c.want {
			t.Errorf("%s %v: got %q, want %q", c.d, c.data, got, c.want)
		}
	}
}

// A request that never got to its model has what its front end marked; a cache hit has
// no compute.
func TestPartialTraces(t *testing.T) {
	r := start(t, on())
	refused := r.Sample("m", "")
	refused.Mark("HTTP_RECV_START", 1)
	refused.End()
	hit := r.Sample("m", "")
	hit.Start = 2
	hit.Queued = 3
	hit.Times = infer.Times{ComputeStart: 4, RequestEnd: 5, CacheHit: true}
	hit.End()
	r.stop()
	var names []string
	for _, e := range read(t, r.file) {
		for _, m := range e.Timestamps {
			names = append(names, m.Name)
		}
		if e.ModelName != "" {
			names = append(names, "model")
		}
	}
	if got := strings.Join(names, " "); got != "HTTP_RECV_START model REQUEST_START QUEUE_START REQUEST_END" {
		t.Errorf("got %s", got)
	}
}

func TestLogFrequency(t *testing.T) {
	s := on()
	s.LogFrequency = 2
	r := start(t, s)
	for range 5 {
		r.request("m", "")
	}
	r.stop()
	for name, want := range map[string]int{".0": 2, ".1": 2, ".2": 1} {
		if got := ids(t, r.file+name); len(got) != want {
			t.Errorf("%s: %v, want %d traces", name, got, want)
		}
	}
	if _, err := os.Stat(r.file); err == nil {
		t.Error("there is a file without a number")
	}
}

// A count that runs out puts its traces into a numbered file, at once, and turns tracing
// off.
func TestCountRunsOut(t *testing.T) {
	s := on()
	s.Rate, s.Count = 2, 3
	r := start(t, s)
	sampled := 0
	for range 20 {
		if r.request("m", "") {
			sampled++
		}
	}
	if sampled != 3 || r.Settings("").Count != 0 {
		t.Errorf("%d sampled, %d left", sampled, r.Settings("").Count)
	}
	wait(t, "the file", func() bool { _, err := os.Stat(r.file + ".0"); return err == nil })
	if got := ids(t, r.file+".0"); len(got) != 3 {
		t.Errorf("got %v", got)
	}
	wait(t, "off", func() bool { return !r.On() })
}

// wait polls until ok or a deadline.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never came: %s", what)
		}
	}
}

// Without a frequency traces are in the file after a second, which is valid at any time.
func TestFileIsValidWhileItGrows(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := on()
		s.File = filepath.Join(dir, "t.json")
		r := start(t, s)
		for n := 1; n < 4; n++ {
			r.request("m", "")
			time.Sleep(flushAfter + time.Millisecond) // virtual
			synctest.Wait()
			if got := ids(t, r.file); len(got) != n {
				t.Errorf("after %d requests: %v", n, got)
			}
		}
		r.stop()
		if got := ids(t, r.file); len(got) != 3 {
			t.Errorf("at the end: %v", got)
		}
	})
}

// A group that is larger than the buffer is written in parts, to the same numbered file.
func TestLargeGroup(t *testing.T) {
	s := on()
	s.LogFrequency = 1000
	r := start(t, s)
	id := strings.Repeat("x", 4096)
	for range 600 {
		wait(t, "room in the queue", func() bool { return len(r.queue) < maxQueue/2 })
		r.request("m", id)
	}
	wait(t, "a part", func() bool { // who reads in the middle of a write may see it cut
		data, err := os.ReadFile(r.file + ".0")
		return err == nil && len(r.queue) == 0 && json.Valid(data)
	})
	if info, err := os.Stat(r.file + ".0"); err != nil || info.Size() < maxBuffer {
		t.Errorf("the part: %v, %v", info, err)
	}
	if n := r.Dropped(); n != 0 {
		t.Errorf("%d traces lost", n)
	}
	r.stop()
	if n := len(ids(t, r.file+".0")); n != 600 {
		t.Errorf("%d traces at the end", n)
	}
}

// An update writes what the settings before it left behind, once that has ended.
func TestUpdateEndsAGroup(t *testing.T) {
	s := on()
	s.LogFrequency = 100
	r := start(t, s)
	slow := r.Sample("m", "slow")
	r.request("m", "")
	update := func(settings map[string][]string) {
		t.Helper()
		c, err := ParseChange(settings)
		if err == nil {
			err = r.Update("", c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	update(map[string][]string{"log_frequency": {"50"}})
	r.request("m", "")
	finish(slow)
	wait(t, "the file", func() bool { _, err := os.Stat(r.file + ".0"); return err == nil })
	if got := ids(t, r.file+".0"); len(got) != 2 {
		t.Errorf("first group: %v", got)
	}
	r.stop()
	if got := ids(t, r.file+".1"); len(got) != 1 {
		t.Errorf("second group: %v", got)
	}
}

func TestLossIsCounted(t *testing.T) {
	lost := 0
	tr := New(Settings{Level: infer.TraceTimestamps, Rate: 1, Count: -1, File: "/nonexistent/t"}, Deps{Log: slog.New(slog.DiscardHandler),
		Dropped: func(n int) { lost += n }})
	r := &run{Tracer: tr}
	for range maxQueue + 7 {
		r.request("m", "") // nobody reads
	}
	if lost != 7 || tr.Dropped() != 7 {
		t.Errorf("%d lost, %d counted", lost, tr.Dropped())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.Run(ctx); err != nil { // the folder is not there: the others are lost too
		t.Fatal(err)
	}
	if lost != maxQueue+7 {
		t.Errorf("%d lost", lost)
	}
}

func TestTensorsAreBounded(t *testing.T) {
	r := start(t, Settings{Level: infer.TraceTensors, Rate: 1, Count: -1})
	big := []infer.Tensor{{Name: "x", Datatype: infer.Uint8, Shape: []int64{maxRoom}, Data: make([]byte, maxRoom)}}
	var open []*infer.Trace
	for range maxTensors/maxRoom + 1 {
		tr := r.Sample("m", "")
		tr.Tensor(infer.TraceQueueInput, big)
		tr.Tensor(infer.TraceQueueInput, big) // more than one request may copy
		open = append(open, tr)
	}
	for i, tr := range open {
		if had, want := tr.Tensors[0].Data != nil, i < maxTensors/maxRoom; had != want || tr.Tensors[1].Data != nil {
			t.Errorf("trace %d: data %v, %v", i, had, tr.Tensors[1].Data != nil)
		}
		tr.Tensors = nil
		tr.End()
	}
	wait(t, "the budget back", func() bool { return r.budget.Load() == maxTensors })
}

// Any order of requests, ends and updates: every sampled trace is in exactly one file,
// every file is valid.
func TestRandomRuns(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		s := on()
		s.LogFrequency = uint32(rnd.IntN(4))
		r := start(t, s)
		want := map[uint64]bool{}
		var open []*infer.Trace
		for range 200 {
			switch rnd.IntN(8) {
			case 0:
				c := Change{set: fieldFrequency | fieldRate, to: Settings{LogFrequency: uint32(rnd.IntN(5)), Rate: 1 + uint32(rnd.IntN(3))}}
				if rnd.IntN(2) == 0 {
					c.set |= fieldCount
					c.to.Count = int32(1 + rnd.IntN(9))
				}
				if err := r.Update([]string{"", "a"}[rnd.IntN(2)], c); err != nil && !strings.Contains(err.Error(), "invalid trace setting") {
					t.Fatal(err)
				}
			case 1, 2, 3:
				if len(open) > 0 {
					i := rnd.IntN(len(open))
					finish(open[i])
					open = append(open[:i], open[i+1:]...)
				}
			default:
				if tr := r.Sample([]string{"a", "b"}[rnd.IntN(2)], ""); tr != nil {
					open, want[tr.ID] = append(open, tr), true
				}
			}
		}
		for _, tr := range open {
			finish(tr)
		}
		r.stop()
		files, err := filepath.Glob(r.file + "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			for _, id := range ids(t, f) {
				if !want[id] {
					t.Errorf("seed %d: trace %d is in %s and was not waited for", seed, id, f)
				}
				delete(want, id)
			}
		}
		if len(want) != 0 {
			t.Errorf("seed %d: %d traces are in no file", seed, len(want))
		}
	}
}

func TestOffCostsNothing(t *testing.T) {
	tr := New(DefaultSettings(), Deps{Log: slog.New(slog.DiscardHandler)})
	var none *Tracer
	var req infer.Request
	if n := testing.AllocsPerRun(100, func() {
		if tr.On() || none.On() {
			t.Error("on")
		}
		req.Trace.Mark("x", 1)
		req.Trace.Tensor("x", nil)
		req.Trace.End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkOff(b *testing.B) {
	tr := New(DefaultSettings(), Deps{Log: slog.New(slog.DiscardHandler)})
	for b.Loop() {
		if tr.On() {
			b.Fatal("on")
		}
	}
}

// BenchmarkNotSampled is a request that is counted and passed over.
func BenchmarkNotSampled(b *testing.B) {
	s := on()
	s.Rate, s.File = 1<<30, "t"
	tr := New(s, Deps{Log: slog.New(slog.DiscardHandler)})
	b.ReportAllocs()
	for b.Loop() {
		if tr.On() && tr.Sample("m", "") != nil {
			b.Fatal("sampled")
		}
	}
}

// A count whose last trace is lost ends all the same: the others are in their file.
func TestLastTraceOfACountIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := on()
		s.Count = 2
		r := start(t, s)
		if !r.request("m", "kept") {
			t.Fatal("not sampled")
		}
		synctest.Wait()
		r.queue = make(chan *infer.TraceFamily) // nobody receives: it is full
		if !r.request("m", "lost") {
			t.Fatal("not sampled")
		}
		synctest.Wait()
		if got := read(t, r.file+".0"); len(got) < 2 || got[1].RequestID != "kept" || r.On() || r.Dropped() != 1 {
			t.Errorf("file %+v, on %v, %d dropped", got, r.On(), r.Dropped())
		}
	})
}
