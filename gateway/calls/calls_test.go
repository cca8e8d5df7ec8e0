package calls

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/client"
)

// world is all that calls stand on, written down.
type world struct {
	told   []string
	denied string // the model that nobody may do anything with
	log    bytes.Buffer
}

func (w *world) say(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

func (w *world) calls(depth int) *Calls {
	return New(Config{Depth: depth}, Deps{
		Steps: func(namespace string) Steps {
			w.say("in %q", namespace)
			return w
		},
		Allowed: func(env *infer.Envelope, model string) error {
			w.say("may %s %s on %s, changing %v", env.Principal.Name, env.Action, model, env.Change)
			if model == w.denied {
				return infer.Refusef(infer.PermissionDenied, infer.ReasonForbidden, "no")
			}
			return nil
		},
		Models: func() Models { return w },
		Load: func(ctx context.Context, model, config string, files map[string][]byte) error {
			w.say("load %s %q %q for %s", model, config, files, infer.CallerOf(ctx))
			return nil
		},
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
}

func (w *world) ModelReadyNow(_ context.Context, name, version string) (bool, error) {
	if name == "gone" {
		return false, infer.Errorf(infer.NotFound, "no")
	}
	if version == "3" {
		return false, infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "not loaded")
	}
	return version == "1", nil
}

func (w *world) Unload(ctx context.Context, name string, dependents bool) error {
	w.say("unload %s %v for %s", name, dependents, infer.CallerOf(ctx))
	return nil
}

type pinned struct{ schedule.Pinned }

func (w *world) Pin(_ context.Context, m *schedule.StepModel) (schedule.Pinned, error) {
	w.say("pin %s %d", m.Name, m.Version)
	return pinned{}, nil
}

func (w *world) Start(_ context.Context, _ schedule.Pinned, req *infer.Request, to infer.Sink) func() {
	w.say("start %s", req.Model)
	to.Done(nil)
	return nil
}

func (w *world) want(t *testing.T, lines ...string) {
	t.Helper()
	if got, want := strings.Join(w.told, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	w.told = nil
}

type sink struct{ err *error }

func (sink) Large(*infer.Response) bool { return false }
func (sink) Send(*infer.Response) error { return nil }
func (s sink) Done(err error) infer.Flusher {
	*s.err = err
	return nil
}

func from() *client.Calling {
	return &client.Calling{Model: "m", Version: 2, Namespace: "ns", Worker: "cpu",
		Call: &infer.Envelope{Action: infer.ActionInference, Principal: &infer.Principal{Name: "alice"}}}
}

func (w *world) infer(c *Calls, req *infer.Request) error {
	err := errors.New("it did not end")
	c.Infer(context.Background(), from(), req, sink{&err})
	return err
}

// An inference is decided on with its caller, and goes the way of a step of the model's namespace.
func TestInfer(t *testing.T) {
	w := &world{denied: "secret"}
	c := w.calls(2)
	if err := w.infer(c, &infer.Request{Model: "x", Version: "3", Depth: 2}); err != nil {
		t.Error(err)
	}
	w.want(t, `in "ns"`, "may alice inference on x, changing false", "pin x 3", "start x")
	for name, row := range map[string]struct {
		req    infer.Request
		code   infer.Code
		reason infer.Reason
	}{
		"too deep": {infer.Request{Model: "x", Depth: 3}, infer.InvalidArg, infer.ReasonCallDepth},
		"denied":   {infer.Request{Model: "secret"}, infer.PermissionDenied, infer.ReasonForbidden},
		"version":  {infer.Request{Model: "x", Version: "-1"}, infer.InvalidArg, ""},
	} {
		if err := w.infer(c, &row.req); infer.CodeOf(err) != row.code || infer.ReasonOf(err) != row.reason {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Control is asked for with the rights of model control, and shared fairly by caller.
func TestControl(t *testing.T) {
	w := &world{denied: "secret"}
	c := w.calls(0)
	do := func(call *worker.Call) (*worker.CallAnswer, error) { return c.Do(context.Background(), from(), call) }
	change := &worker.ModelChange{Model: "x", Config: "{}", Dependents: true, Files: map[string][]byte{"1/f": []byte("y")}}
	if _, err := do(&worker.Call{What: &worker.Call_Load{Load: change}}); err != nil {
		t.Error(err)
	}
	if _, err := do(&worker.Call{What: &worker.Call_Unload{Unload: change}}); err != nil {
		t.Error(err)
	}
	w.want(t, "may alice model-repository on x, changing true", `load x "{}" map["1/f":"y"] for principal alice`,
		"may alice model-repository on x, changing true", "unload x true for principal alice")
	for version, want := range map[string]bool{"1": true, "2": false, "3": false} {
		a, err := do(&worker.Call{What: &worker.Call_Ready{Ready: &worker.ModelVersion{Model: "x", Version: version}}})
		if err != nil || a.Ready != want {
			t.Errorf("version %s: %v, %v", version, a, err)
		}
	}
	if a, err := do(&worker.Call{What: &worker.Call_Ready{Ready: &worker.ModelVersion{Model: "gone"}}}); err != nil || a.Ready {
		t.Errorf("a model that is not there: %v, %v", a, err)
	}
	w.told = nil
	for _, call := range []*worker.Call{{What: &worker.Call_Load{Load: &worker.ModelChange{Model: "secret"}}},
		{What: &worker.Call_Unload{Unload: &worker.ModelChange{Model: "secret"}}},
		{What: &worker.Call_Ready{Ready: &worker.ModelVersion{Model: "secret"}}}} {
		if _, err := do(call); infer.CodeOf(err) != infer.PermissionDenied {
			t.Errorf("%v: got %v", call, err)
		}
	}
	if _, err := do(&worker.Call{}); infer.CodeOf(err) != infer.Unsupported {
		t.Errorf("an unknown call: %v", err)
	}
}

// A model's lines are bounded, and what was dropped is told with the next one.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		c := w.calls(0)
		say := func(text string) {
			_, err := c.Do(t.Context(), from(), &worker.Call{What: &worker.Call_Log{Log: &worker.LogLine{Level: worker.LogLine_ERROR, Text: text}}})
			if err != nil {
				t.Error(err)
			}
		}
		for range linesAtOnce + 30 {
			say("x")
		}
		if n := strings.Count(w.log.String(), "msg=x"); n != linesAtOnce || !strings.Contains(w.log.String(), "level=ERROR msg=x model=m version=2") {
			t.Errorf("%d lines were written, want %d: %.200s", n, linesAtOnce, w.log.String())
		}
		time.Sleep(time.Second)
		w.log.Reset()
		say(strings.Repeat("é", maxLine))
		if got := w.log.String(); !strings.Contains(got, "30 log lines of the model were dropped") || strings.Count(got, "é") != maxLine/2 {
			t.Errorf("got %.300s", got)
		}
	})
}

func counter(family string, by float64, labels map[string]string) *worker.MetricUpdate {
	return &worker.MetricUpdate{Family: family, Help: "h", Labels: labels, Change: &worker.MetricUpdate_Add{Add: by}}
}

// Figures of models that say the same are one; they go with the last model that said them.
func TestFigures(t *testing.T) {
	w := &world{}
	c := w.calls(0)
	one, two := from(), from()
	two.Model = "other"
	update := func(who *client.Calling, u *worker.MetricUpdate) error {
		_, err := c.Do(context.Background(), who, &worker.Call{What: &worker.Call_Metric{Metric: u}})
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(update(one, counter("steps_total", 1, map[string]string{"k": "a"})))
	must(update(two, counter("steps_total", 2, map[string]string{"k": "a"})))
	must(update(two, counter("steps_total", 5, map[string]string{"k": "b"})))
	must(update(one, &worker.MetricUpdate{Family: "level", Kind: worker.MetricUpdate_GAUGE, Change: &worker.MetricUpdate_Set{Set: 3}}))
	must(update(one, &worker.MetricUpdate{Family: "level", Kind: worker.MetricUpdate_GAUGE, Change: &worker.MetricUpdate_Add{Add: -1}}))
	for _, v := range []float64{0.5, 1, 7} {
		must(update(one, &worker.MetricUpdate{Family: "took", Kind: worker.MetricUpdate_HISTOGRAM, Buckets: []float64{1, 2},
			Change: &worker.MetricUpdate_Observe{Observe: v}}))
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	expect := func(text string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(text)); err != nil {
			t.Error(err)
		}
	}
	steps := "# HELP steps_total h\n# TYPE steps_total counter\nsteps_total{k=\"a\"} 3\nsteps_total{k=\"b\"} 5\n"
	expect("# HELP level \n# TYPE level gauge\nlevel 2\n" + steps +
		"# HELP took \n# TYPE took histogram\ntook_bucket{le=\"1\"} 2\ntook_bucket{le=\"2\"} 2\ntook_bucket{le=\"+Inf\"} 3\ntook_sum 8.5\ntook_count 3\n")
	declare, gone := &worker.MetricUpdate_Declare{Declare: true}, &worker.MetricUpdate_Delete{Delete: true}
	must(update(one, // the other has it, too
		&worker.MetricUpdate{Family: "steps_total", Labels: map[string]string{"k": "a"}, Change: gone}))
	must(update(one, &worker.MetricUpdate{Family: "took", Kind: worker.MetricUpdate_HISTOGRAM, Change: gone}))
	must(update(one, &worker.MetricUpdate{Family: "took", Kind: worker.MetricUpdate_HISTOGRAM, Change: gone}))
	must(update(one, &worker.MetricUpdate{Family: "level", Kind: worker.MetricUpdate_GAUGE, Change: declare}))
	must(update(one, &worker.MetricUpdate{Family: "took", Kind: worker.MetricUpdate_HISTOGRAM,
		Buckets: []float64{3}, Change: declare}))
	expect("# HELP level \n# TYPE level gauge\nlevel 2\n" + steps +
		"# HELP took \n# TYPE took histogram\n" +
		"took_bucket{le=\"3\"} 0\ntook_bucket{le=\"+Inf\"} 0\ntook_sum 0\ntook_count 0\n")
	c.Forget(one)
	expect(steps)
	c.Forget(two)
	expect("")
}

// What contradicts a family, the server's own names or a bound is refused.
func TestFiguresRefused(t *testing.T) {
	w := &world{}
	c := w.calls(0)
	update := func(u *worker.MetricUpdate) error {
		_, err := c.Do(context.Background(), from(), &worker.Call{Id: 1, What: &worker.Call_Metric{Metric: u}})
		return err
	}
	if err := update(counter("steps_total", 1, map[string]string{"k": "a"})); err != nil {
		t.Fatal(err)
	}
	set, observe := &worker.MetricUpdate_Set{}, &worker.MetricUpdate_Observe{}
	for name, u := range map[string]*worker.MetricUpdate{
		"another kind":     {Family: "steps_total", Kind: worker.MetricUpdate_GAUGE, Labels: map[string]string{"k": "a"}, Change: set},
		"other labels":     counter("steps_total", 1, nil),
		"a falling count":  counter("steps_total", -1, map[string]string{"k": "a"}),
		"no change":        {Family: "x"},
		"set of a counter": {Family: "x", Change: set},
		"observed gauge":   {Family: "x", Kind: worker.MetricUpdate_GAUGE, Change: observe},
		"no buckets":       {Family: "x", Kind: worker.MetricUpdate_HISTOGRAM, Change: observe},
		"falling buckets":  {Family: "x", Kind: worker.MetricUpdate_HISTOGRAM, Buckets: []float64{2, 1}, Change: observe},
		"name":             counter("a b", 1, nil),
		"the server's":     counter("sluice_x", 1, nil),
		"label":            counter("x", 1, map[string]string{"__x": "a"}),
		"label's value":    counter("x", 1, map[string]string{"k": strings.Repeat("x", maxLabelValue+1)}),
		"no text":          counter("x", 1, map[string]string{"k": "\xff"}),
	} {
		if err := update(u); err == nil || infer.CodeOf(err) != infer.InvalidArg {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := c.Do(context.Background(), from(), &worker.Call{What: &worker.Call_Metric{Metric: counter("sluice_x", 1, nil)}}); err != nil ||
		!strings.Contains(w.log.String(), "the server's own") {
		t.Errorf("what nobody waits for: got %v, and the log says %q", err, w.log.String())
	}
	var last error
	for n := range maxModelSeries {
		last = update(counter("steps_total", 1, map[string]string{"k": fmt.Sprint(n)}))
	}
	if infer.CodeOf(last) != infer.ResourceExhausted {
		t.Errorf("series %d: got %v", maxModelSeries+1, last)
	}
}
