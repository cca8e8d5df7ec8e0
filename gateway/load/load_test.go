package load

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	orcav3 "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/internal/transcript"
	"github.com/sluice-serve/sluice/xds/orca"
)

var update = transcript.Flag()

// Transcripts: `at MS` and then the models that are there, `model NAME/VERSION key=value…`,
// until `look`, under which the figures and the header stand.
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte {
		var s sampler
		var now time.Duration
		var models []Model
		var out bytes.Buffer
		return transcript.Replay(t, text, &out, func(verb string, args []string) error {
			switch verb {
			case "at":
				ms, err := strconv.Atoi(args[0])
				now, models = time.Duration(ms)*time.Millisecond, nil
				return err
			case "model":
				m, err := parseModel(args)
				models = append(models, m)
				return err
			case "look":
				s.look(now, models)
				r := s.report(life{machine: Machine{CPU: -1, Memory: -1}})
				for _, k := range s.order {
					f := s.models[k]
					fmt.Fprintf(&out, "  %s/%s utilization %.3f, %.2f/s, %.2f/s failed, %.4f s each\n", k.name, k.version, f.utilization, f.qps, f.eps, f.service)
				}
				fmt.Fprintf(&out, "  %s\n", r.Header(Text))
				return nil
			}
			return fmt.Errorf("no event %s", verb)
		})
	})
}

func parseModel(args []string) (Model, error) {
	m := Model{Instances: 1}
	m.Name, m.Version, _ = strings.Cut(args[0], "/")
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		n, err := strconv.Atoi(value)
		if err != nil {
			return m, err
		}
		switch key {
		case "waiting":
			m.Waiting = n
		case "busy":
			m.Busy = n
		case "inflight":
			m.Inflight = n
		case "instances":
			m.Instances = n
		case "requests":
			m.Requests, m.Executed = uint64(n), uint64(n)
		case "failed":
			m.Failed = uint64(n)
		case "compute_ms":
			m.Compute = time.Duration(n) * time.Millisecond
		default:
			return m, fmt.Errorf("a model has no %s", key)
		}
	}
	return m, nil
}

// The three formats say the same, in the grammar of Envoy's reader; the names of models
// that a header can't have are left out.
func TestFormatsAgree(t *testing.T) {
	var s sampler
	s.look(1, []Model{{Name: "busy", Version: "1", Waiting: 3, Busy: 2, Inflight: 5, Instances: 2},
		{Name: "a,b=c", Version: "1", Busy: 1, Instances: 1}, {Name: "idle", Version: "1", Instances: 1}})
	r := s.report(life{machine: Machine{CPU: .25, Memory: .5}})
	want := &orcav3.OrcaLoadReport{CpuUtilization: .25, MemUtilization: .5, ApplicationUtilization: 2.5, NamedMetrics: map[string]float64{
		orca.QueueDepth: 3, orca.Busy: 3, orca.Instances: 4, orca.Inflight: 5, "sluice.queue_depth/busy/1": 3}}
	check := func(format string, got *orcav3.OrcaLoadReport) {
		t.Helper()
		if !proto.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", format, got, want)
		}
	}
	text := &orcav3.OrcaLoadReport{NamedMetrics: map[string]float64{}}
	for _, pair := range strings.Split(strings.TrimPrefix(r.Header(Text), "TEXT "), ", ") {
		name, value, ok := strings.Cut(pair, "=")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			t.Fatalf("%q is no pair: %v", pair, err)
		}
		switch metric, named := strings.CutPrefix(name, "named_metrics."); {
		case named:
			text.NamedMetrics[metric] = v
		case name == "cpu_utilization":
			text.CpuUtilization = v
		case name == "mem_utilization":
			text.MemUtilization = v
		case name == "application_utilization":
			text.ApplicationUtilization = v
		default:
			t.Errorf("no field %s", name)
		}
	}
	check("text", text)
	doc := &orcav3.OrcaLoadReport{}
	if err := protojson.Unmarshal([]byte(strings.TrimPrefix(r.Header(JSON), "JSON ")), doc); err != nil {
		t.Fatal(err)
	}
	check("json", doc)
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header(Binary), "BIN "))
	if err != nil {
		t.Fatal(err)
	}
	bin := &orcav3.OrcaLoadReport{}
	if err := proto.Unmarshal(raw, bin); err != nil {
		t.Fatal(err)
	}
	check("bin", bin)
	if r.Binary() != string(raw) {
		t.Error("metadata and header differ")
	}
	if !json.Valid([]byte(strings.TrimPrefix(r.Header(JSON), "JSON "))) || r.Header(None) != "" {
		t.Errorf("headers %q, %q", r.Header(JSON), r.Header(None))
	}
}

// What is said out of band is what a picker reads.
func TestFullIsRead(t *testing.T) {
	var s sampler
	models := []Model{{Name: "m", Version: "2", Waiting: 4, Busy: 1, Inflight: 6, Instances: 1, Sequence: true},
		{Name: "a/b", Version: "1", Instances: 3, Cached: true}}
	s.look(time.Second, models)
	models[0].Executed, models[0].Requests, models[0].Failed, models[0].Compute = 10, 10, 5, time.Second
	s.look(2*time.Second, models)
	g := orca.Read(s.full(life{started: 7.5, ready: true, machine: Machine{CPU: -1, Memory: -1}}))
	m := g.Models["m"]["2"]
	if g.Started != 7.5 || !g.Ready || m == nil || m.Waiting != 4 || m.Busy != 1 || m.Inflight != 6 || m.Instances != 1 || !m.Sequence || m.Cache ||
		math.Abs(m.Service-.1) > 1e-9 || math.Abs(m.Errors-.5) > 1e-9 {
		t.Errorf("got %+v, m %+v", g, m)
	}
	if other := g.Models["a/b"]["1"]; other == nil || other.Instances != 3 || other.Sequence || !other.Cache || other.Service != 0 {
		t.Errorf("a/b: got %+v", other)
	}
}

// meter is one whose models are those of the caller.
func meter(t testing.TB, models func(to []Model) []Model) *Meter {
	t.Helper()
	return New(Config{Started: time.Unix(1, 0)}, Deps{Models: models, Ready: func() bool { return true }})
}

// A Meter looks often while somebody asks, and once a second while nobody does; who asks
// then wakes it.
func TestMeterSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		looks := 0
		m := meter(t, func(to []Model) []Model {
			mu.Lock()
			defer mu.Unlock()
			looks++
			return to
		})
		count := func() int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			n := looks
			looks = 0
			return n
		}
		go m.Run(t.Context())
		for range 100 {
			m.Report()
			time.Sleep(10 * time.Millisecond)
		}
		if n := count(); n < 48 || n > 52 {
			t.Errorf("%d looks in a second while asked, want 50", n)
		}
		time.Sleep(6 * time.Second) // falls asleep
		count()
		time.Sleep(10 * time.Second)
		if n := count(); n < 9 || n > 11 {
			t.Errorf("%d looks in ten seconds while nobody asked, want 10", n)
		}
		m.Report()
		time.Sleep(30 * time.Millisecond)
		if n := count(); n < 2 {
			t.Errorf("%d looks within 30 ms of being asked, want 2", n)
		}
	})
}

// Reports are read while they are made.
func TestConcurrent(t *testing.T) {
	m := meter(t, func(to []Model) []Model { return append(to, Model{Name: "m", Version: "1", Busy: 1, Instances: 1}) })
	a := Answers{Meter: m, Always: Text}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m.look()
				if h := a.Header(""); !strings.HasPrefix(h, "TEXT ") {
					t.Errorf("header %q", h)
				}
				if n := len(a.Full().NamedMetrics); n == 0 {
					t.Error("a report without metrics")
				}
			}
		})
	}
	wg.Wait()
}

func TestAnswers(t *testing.T) {
	m := meter(t, func(to []Model) []Model { return to })
	for _, c := range []struct {
		always         Format
		asked          string
		header, key, v string // beginnings
	}{
		{None, "", "", "", ""},
		{None, "text", "TEXT ", HeaderKey, "TEXT "},
		{None, "JSON", "JSON {", HeaderKey, "JSON {"},
		{None, "bin", "BIN ", TrailerKey, ""},
		{None, "xml", "", "", ""},
		{None, "off", "", "", ""},
		{Text, "", "TEXT ", HeaderKey, "TEXT "},
		{Text, "json", "JSON {", HeaderKey, "JSON {"},
		{Binary, "nonsense", "BIN ", TrailerKey, ""},
	} {
		a := Answers{Meter: m, Always: c.always}
		if h := a.Header(c.asked); !strings.HasPrefix(h, c.header) || (h == "") != (c.header == "") {
			t.Errorf("always %d, asked %q: header %q, want %q", c.always, c.asked, h, c.header)
		}
		if k, v := a.Trailer(c.asked); k != c.key || !strings.HasPrefix(v, c.v) || (v == "") != (c.key == "") {
			t.Errorf("always %d, asked %q: trailer %q %q, want %q %q", c.always, c.asked, k, v, c.key, c.v)
		}
	}
	if _, err := ParseAlways("xml"); err == nil {
		t.Error("xml was taken as a format")
	}
}

// Naming the load in an answer costs a request nothing.
func TestNoAllocations(t *testing.T) {
	a := Answers{Meter: meter(t, func(to []Model) []Model { return to }), Always: Text}
	for _, asked := range []string{"", "json", "bin"} {
		if n := testing.AllocsPerRun(100, func() {
			a.Header(asked)
			a.Trailer(asked)
		}); n != 0 {
			t.Errorf("asked %q: %v allocations for an answer", asked, n)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	a := Answers{Meter: meter(b, func(to []Model) []Model { return to }), Always: Text}
	b.ReportAllocs()
	for b.Loop() {
		a.Header("")
	}
}

func BenchmarkLook(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m := meter(b, func(to []Model) []Model {
				for i := range n {
					to = append(to, Model{Name: "model" + strconv.Itoa(i), Version: "1", Busy: 1, Instances: 1})
				}
				return to
			})
			b.ReportAllocs()
			for b.Loop() {
				m.look()
			}
		})
	}
}
