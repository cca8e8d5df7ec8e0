package tracing

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

var update = flag.Bool("update", false, "rewrite testdata")

// show is a Tracer's settings in one line.
func show(s Settings) string {
	return fmt.Sprintf("level=%s rate=%d count=%d frequency=%d", strings.Join(LevelNames(s.Level), "+"), s.Rate, s.Count, s.LogFrequency)
}

// TestTranscript runs testdata/settings.txt: updates in, settings out. A line of
// `flags`, `set MODEL name=value…`, `get MODEL` or `sample MODEL N`; - is the global
// setting, name= clears, a,b are two values.
func TestTranscript(t *testing.T) {
	const path = "testdata/settings.txt"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var tr *Tracer
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out = append(out, line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		answer := func(format string, args ...any) { out = append(out, "  "+fmt.Sprintf(format, args...)) }
		settings := map[string][]string{}
		for _, w := range words[min(2, len(words)):] {
			name, value, _ := strings.Cut(w, "=")
			settings[name] = nil
			if value != "" {
				settings[name] = strings.Split(value, ",")
			}
		}
		model := ""
		if len(words) > 1 && words[1] != "-" {
			model = words[1]
		}
		switch words[0] {
		case "flags":
			s := DefaultSettings()
			c, err := ParseChange(settings)
			if err != nil {
				t.Fatal(err)
			}
			s, _ = c.apply(s, 0, s)
			if model != "" {
				s.File = model
			}
			tr = New(s, Deps{Log: slog.New(slog.DiscardHandler)})
		case "set":
			c, err := ParseChange(settings)
			if err == nil {
				err = tr.Update(model, c)
			}
			if err != nil {
				answer("%s: %v", infer.CodeOf(err), err)
				continue
			}
		case "sample":
			var hits []string
			var n int
			if _, err := fmt.Sscan(words[2], &n); err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if tr.Sample(model, "") != nil {
					hits = append(hits, fmt.Sprint(i+1))
				}
			}
			answer("sampled %v of %d", hits, n)
			continue
		case "get":
		default:
			t.Fatalf("what is %q?", line)
		}
		answer("%s", show(tr.Settings(model)))
	}
	got := strings.Join(out, "\n") + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != string(data) {
		t.Errorf("got\n%s\nwant\n%s", got, data)
	}
}

// model is the settings as one would write them down: values for each place.
type model struct {
	flags, global map[string]string
	models        map[string]map[string]string
}

func (m *model) get(name, setting string) string {
	for _, at := range []map[string]string{m.models[name], m.global, m.flags} {
		if v, ok := at[setting]; ok {
			return v
		}
	}
	return ""
}

// Random updates and clears against the simple model of three places.
func TestRandomUpdates(t *testing.T) {
	names := []string{"trace_rate", "log_frequency", "trace_level"}
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		s := on()
		s.File = "t"
		tr := New(s, Deps{Log: slog.New(slog.DiscardHandler)})
		m := model{flags: map[string]string{"trace_rate": "1", "log_frequency": "0", "trace_level": "TIMESTAMPS"},
			global: map[string]string{}, models: map[string]map[string]string{"a": {}, "b": {}}}
		for range 60 {
			at := []string{"", "a", "b"}[rnd.IntN(3)]
			place := m.global
			if at != "" {
				place = m.models[at]
			}
			given := map[string][]string{}
			for _, name := range names {
				v := fmt.Sprint(1 + rnd.IntN(9))
				if name == "trace_level" {
					v = []string{"OFF", "TENSORS"}[rnd.IntN(2)]
				}
				switch rnd.IntN(3) {
				case 0:
					given[name], place[name] = []string{v}, v
				case 1:
					given[name] = nil
					delete(place, name)
				}
			}
			c, err := ParseChange(given)
			if err == nil {
				err = tr.Update(at, c)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, where := range []string{"", "a", "b", "other"} {
				got := tr.Settings(where)
				values := got.Values()
				for _, name := range names {
					if want := m.get(where, name); !slices.Equal(values[name], []string{want}) {
						t.Fatalf("seed %d: %s of %q is %v, want %s", seed, name, where, values[name], want)
					}
				}
			}
		}
		if v := tr.view.Load(); len(v.models) > 2 {
			t.Errorf("models %v", slices.Collect(maps.Keys(v.models)))
		}
	}
}

func FuzzParseChange(f *testing.F) {
	f.Add("trace_rate", "12abc")
	f.Add("trace_count", "-2")
	f.Add("trace_level", "OFF")
	f.Fuzz(func(t *testing.T, name, value string) {
		c, err := ParseChange(map[string][]string{name: {value}})
		if err != nil && !c.IsZero() && infer.CodeOf(err) != infer.InvalidArg && infer.CodeOf(err) != infer.Unsupported {
			t.Errorf("%q=%q: %v", name, value, err)
		}
	})
}
