package ensemble

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/leak"
	"github.com/sluice-serve/sluice/internal/transcript"
)

func TestMain(m *testing.M) { leak.Main(m) }

var update = transcript.Flag()

// script is a transcript: a graph, then events and what follows from them.
type script struct {
	cfg       Config
	decoupled []bool
	want      []infer.RequestedOutput
	run       *run
	jobs      map[string]job // handed out and not ended, "step@label.index"
	out       strings.Builder
}

// TestTranscripts plays testdata/*.txt. "input", "output", "step name in in -> out out"
// ("name*": decoupled) and "want" describe the graph, "begin", "answer", "end" and "stop"
// are events; "> " lines are what the state machine says.
func TestTranscripts(t *testing.T) {
	transcript.Run(t, *update, func(t *testing.T, text []byte) []byte { return []byte(play(t, string(text))) })
}

func play(t *testing.T, text string) string {
	s := &script{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		s.out.WriteString(line + "\n")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			if len(words) == 0 {
				s.run = nil
				s.cfg, s.decoupled, s.want = Config{}, nil, nil
			}
			continue
		}
		if !s.describe(words) {
			s.event(t, words)
		}
	}
	return s.out.String()
}

func (s *script) describe(words []string) bool {
	switch words[0] {
	case "input":
		s.cfg.Inputs = append(s.cfg.Inputs, words[1:]...)
	case "output":
		for _, name := range words[1:] {
			s.cfg.Outputs = append(s.cfg.Outputs, Output{Name: name})
		}
	case "want":
		for _, name := range words[1:] {
			s.want = append(s.want, infer.RequestedOutput{Name: name})
		}
	case "step":
		name, many := strings.CutSuffix(words[1], "*")
		arrow := slices.Index(words, "->")
		step := Step{Model: schedule.StepModel{Name: name}}
		for _, in := range words[2:arrow] {
			step.Inputs = append(step.Inputs, Port{"in_" + in, in})
		}
		for _, out := range words[arrow+1:] {
			step.Outputs = append(step.Outputs, Port{"out_" + out, out})
		}
		s.cfg.Steps = append(s.cfg.Steps, step)
		s.decoupled = append(s.decoupled, many)
	default:
		return false
	}
	return true
}

func (s *script) event(t *testing.T, words []string) {
	var jobs []job
	find := func() job {
		j, ok := s.jobs[words[1]]
		if !ok {
			t.Fatalf("no step %s is running", words[1])
		}
		return j
	}
	switch words[0] {
	case "begin":
		s.jobs = map[string]job{}
		s.run = newRun(newGraph(&s.cfg).planFor(s.want, s.decoupled))
		_, jobs = s.run.begin(nil)
	case "answer":
		_, jobs = s.run.answer(find(), nil)
	case "end":
		s.run.end(find())
		delete(s.jobs, words[1])
	case "stop":
		s.run.stop()
	default:
		t.Fatalf("what is %q?", words)
	}
	var names []string
	for _, j := range jobs {
		name := fmt.Sprintf("%s@%d.%d", s.cfg.Steps[j.step].Model.Name, j.frame.label, j.frame.index)
		s.jobs[name] = j
		names = append(names, name)
	}
	if len(names) > 0 {
		s.out.WriteString("> start " + strings.Join(names, " ") + "\n")
	}
	for f := s.run.take(); f != nil; f = s.run.take() {
		s.run.done(f)
		fmt.Fprintf(&s.out, "> send %d.%d\n", f.label, f.index)
	}
	if s.run.running == 0 {
		fmt.Fprintf(&s.out, "> over: %d sent, %d frames open\n", s.run.sent, len(s.run.open))
	}
}

// TestRandomGraphs compares the state machine with a plain evaluation of the graph:
// every needed step runs once for each frame, after all that it reads is there, nothing
// else runs, and every frame of the answers is sent once and in order.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		g := randomGraph(rng)
		g.walk(t, rng, seed)
		if t.Failed() {
			return
		}
	}
}

type randomRun struct {
	cfg       Config
	decoupled []bool
	want      []infer.RequestedOutput
	label     map[string]int // of tensors
}

// randomGraph makes steps that read tensors of one label each.
func randomGraph(rng *rand.Rand) *randomRun {
	g := &randomRun{label: map[string]int{}}
	var tensors []string
	for i := range 1 + rng.IntN(3) {
		name := fmt.Sprintf("I%d", i)
		g.cfg.Inputs = append(g.cfg.Inputs, name)
		tensors = append(tensors, name)
	}
	next := 1
	for i := range 1 + rng.IntN(8) {
		first := tensors[rng.IntN(len(tensors))]
		step := Step{Model: schedule.StepModel{Name: fmt.Sprintf("s%d", i)}, Inputs: []Port{{"a", first}}}
		for _, other := range tensors {
			if other != first && g.label[other] == g.label[first] && rng.IntN(3) == 0 {
				step.Inputs = append(step.Inputs, Port{"b" + other, other})
			}
		}
		many := rng.IntN(6) == 0
		label := g.label[first]
		if many {
			label = next
			next++
		}
		for k := range 1 + rng.IntN(2) {
			name := fmt.Sprintf("T%d_%d", i, k)
			step.Outputs = append(step.Outputs, Port{fmt.Sprint(k), name})
			g.label[name] = label
			tensors = append(tensors, name)
		}
		g.cfg.Steps = append(g.cfg.Steps, step)
		g.decoupled = append(g.decoupled, many)
	}
	last := tensors[len(tensors)-1]
	for _, name := range tensors {
		if g.label[name] == g.label[last] && (name == last || rng.IntN(3) == 0) && name[0] == 'T' {
			g.cfg.Outputs = append(g.cfg.Outputs, Output{Name: name})
		}
	}
	for _, o := range g.cfg.Outputs {
		if rng.IntN(2) == 0 {
			g.want = append(g.want, infer.RequestedOutput{Name: o.Name})
		}
	}
	return g
}

// needed are the steps that the outputs come from, by plain recursion.
func (g *randomRun) needed() map[int]bool {
	need := map[int]bool{}
	var visit func(name string)
	visit = func(name string) {
		for i, s := range g.cfg.Steps {
			if slices.ContainsFunc(s.Outputs, func(p Port) bool { return p.Tensor == name }) {
				need[i] = true
				for _, p := range s.Inputs {
					visit(p.Tensor)
				}
			}
		}
	}
	for _, o := range g.cfg.Outputs {
		if len(g.want) == 0 || slices.ContainsFunc(g.want, func(w infer.RequestedOutput) bool { return w.Name == o.Name }) {
			visit(o.Name)
		}
	}
	return need
}

func (g *randomRun) walk(t *testing.T, rng *rand.Rand, seed uint64) {
	need := g.needed()
	p := newGraph(&g.cfg).planFor(g.want, g.decoupled)
	r := newRun(p)
	frames := map[*frame]map[string]bool{} // tensors that are there
	ran := map[string]bool{}
	runs, sent := make([]int, len(g.cfg.Steps)), 0
	first, open := r.begin(nil)
	frames[first] = map[string]bool{}
	for _, in := range g.cfg.Inputs {
		frames[first][in] = true
	}
	for len(open) > 0 {
		at := rng.IntN(len(open))
		j := open[at]
		name := fmt.Sprintf("%d@%d.%d", j.step, j.frame.label, j.frame.index)
		if answers := map[bool]int{false: 1, true: rng.IntN(4)}[g.decoupled[j.step]]; !ran[name] {
			ran[name] = true
			runs[j.step]++
			if !need[j.step] {
				t.Errorf("seed %d: step %d ran for nothing", seed, j.step)
			}
			for _, in := range g.cfg.Steps[j.step].Inputs {
				if !frames[j.frame][in.Tensor] {
					t.Errorf("seed %d: step %s ran before '%s' was there", seed, name, in.Tensor)
				}
			}
			for range answers {
				f, jobs := r.answer(j, nil)
				if frames[f] == nil {
					frames[f] = map[string]bool{}
				}
				for _, out := range g.cfg.Steps[j.step].Outputs {
					if frames[f][out.Tensor] {
						t.Errorf("seed %d: '%s' of %d.%d came twice", seed, out.Tensor, f.label, f.index)
					}
					frames[f][out.Tensor] = true
				}
				open = append(open, jobs...)
			}
			if g.decoupled[j.step] {
				continue // its end comes later
			}
		}
		r.end(j)
		open = slices.Delete(open, at, at+1)
		for f := r.take(); f != nil; f = r.take() {
			if f.index != sent || f.label != p.sink {
				t.Errorf("seed %d: frame %d.%d was sent as number %d of label %d", seed, f.label, f.index, sent, p.sink)
			}
			sent++
			r.done(f)
		}
	}
	for f := r.take(); f != nil; f = r.take() {
		sent++
		r.done(f)
	}
	if r.running != 0 || len(r.open) != 0 || sent != r.made[p.sink] {
		t.Errorf("seed %d: %d running, %d frames open, %d of %d answers sent", seed, r.running, len(r.open), sent, r.made[p.sink])
	}
	for i := range g.cfg.Steps {
		if need[i] && runs[i] != r.made[p.in[i]] {
			t.Errorf("seed %d: step %d ran %d times for %d frames", seed, i, runs[i], r.made[p.in[i]])
		}
	}
}
