package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
	"github.com/sluice-serve/sluice/gateway/repository"
	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// found are the folders, and the completed configs of the models in them that have no
// faults; nil where they have.
type found struct {
	folders []repository.Folder
	done    []*configpb.ModelConfig
}

// place is a folder of found, by its position.
type place struct {
	at   int
	name string
}

// String is the model's name.
func (p place) String() string { return p.name }

// resolve is the position of the model that an ensemble of a namespace means: as at a
// request, the one of the namespace that the step names, or of the ensemble's own, or the
// only one of that name. False: there is none, or there are several.
func (f *found) resolve(own string, n repository.Need) (int, bool) {
	only, count := -1, 0
	for _, space := range []string{n.Namespace, own} {
		for i := range f.folders {
			if space != "" && f.folders[i].Namespace == space && f.folders[i].Name == n.Name {
				return i, true
			}
		}
	}
	for i := range f.folders {
		if f.folders[i].Name == n.Name {
			only = i
			count++
		}
	}
	return only, count == 1
}

// step is the completed config of the model of a step; nil: it is not known.
func (f *found) step(own string, s *configpb.ModelEnsembling_Step) *configpb.ModelConfig {
	if at, ok := f.resolve(own, repository.Need{Name: s.ModelName, Namespace: s.ModelNamespace}); ok {
		return f.done[at]
	}
	return nil
}

// needs are the places of the models that an ensemble needs.
func (f *found) needs(p place) []place {
	var all []place
	for _, n := range repository.Needs(f.done[p.at]) {
		if at, ok := f.resolve(f.folders[p.at].Namespace, n); ok {
			all = append(all, place{at, n.Name})
		}
	}
	return all
}

// ensembles goes over the models again: what an ensemble needs is known now.
func (r *Report) ensembles(all *found, cfg *repository.Config, w repository.Workers) {
	versions := func(own string, s *configpb.ModelEnsembling_Step) []int64 { // that would be loaded; nil: there is no such model
		at, ok := all.resolve(own, repository.Need{Name: s.ModelName, Namespace: s.ModelNamespace})
		if !ok {
			return nil
		}
		plan, err := repository.Open(all.folders[at], cfg, w)
		if err != nil {
			return []int64{}
		}
		return plan.Versions
	}
	for i, f := range all.folders {
		if len(repository.Needs(all.done[i])) == 0 {
			continue
		}
		plan, err := repository.Open(f, cfg, w)
		if err != nil {
			r.Models[i].fault(err)
			continue
		}
		r.Models[i].ensemble(all, i, plan.Source, versions)
	}
}

// ensemble checks the ensemble at a position against the completed configs of its steps'
// models, and draws its graph. Of models that are wrong themselves nothing is known.
func (m *Model) ensemble(all *found, at int, src *modelconfig.Source, versions func(string, *configpb.ModelEnsembling_Step) []int64) {
	cfg := all.done[at]
	step := func(s *configpb.ModelEnsembling_Step) *configpb.ModelConfig { return all.step(m.Namespace, s) }
	m.fault(modelconfig.Circular(place{at, cfg.Name}, all.needs))
	for i, s := range cfg.GetEnsembleScheduling().GetStep() {
		path := fmt.Sprintf("ensemble_scheduling.step[%d].", i)
		wrong := func(field, format string, args ...any) {
			m.fault(src.Locate(wrap(path+field, fmt.Sprintf(format, args...))))
		}
		have := versions(m.Namespace, s)
		switch {
		case have == nil:
			wrong("model_name", "ensemble %s contains models that are not available or ambiguous: %s", cfg.Name, s.ModelName)
		case step(s) == nil:
			wrong("model_name", "ensemble '%s' depends on '%s' which is not valid", cfg.Name, s.ModelName)
		case s.ModelVersion >= 0 && !slices.Contains(have, s.ModelVersion):
			wrong("model_version", "ensemble '%s' depends on '%s' whose required version %d is not loaded.", cfg.Name, s.ModelName, s.ModelVersion)
		}
	}
	decoupled, err := modelconfig.CheckEnsemble(cfg, step)
	m.fault(src.Locate(err))
	lines := draw(cfg, step)
	if decoupled {
		lines = append(lines, "A step answers any number of times, so the ensemble does: it is asked over a stream.")
	}
	if n := cfg.GetEnsembleScheduling().GetMaxInflightRequests(); n > 0 {
		lines = append(lines, fmt.Sprintf("Each step has at most %s under way at one time, of all requests together.", plural(n, "request")))
	}
	m.Explained = append([]Note{{"graph", lines}}, m.Explained...)
}

// drawing is a graph drawn from top to bottom: a column for each tensor from where it is
// made to where it is read last, a row for each tensor and each step.
type drawing struct {
	cfg     *configpb.ModelConfig
	model   func(*configpb.ModelEnsembling_Step) *configpb.ModelConfig // of its model; nil: not known
	left    map[string]int                                             // tensor → steps that have yet to read it
	columns []string                                                   // the tensor that each column carries; "": free
	rows    []drawn
}

type drawn struct{ lanes, text string }

// draw is the graph of an ensemble whose data flow is sound, in lines.
func draw(cfg *configpb.ModelConfig, step func(*configpb.ModelEnsembling_Step) *configpb.ModelConfig) []string {
	d := &drawing{cfg: cfg, model: step, left: map[string]int{}}
	steps := cfg.GetEnsembleScheduling().GetStep()
	for _, s := range steps {
		for _, tensor := range distinct(s.InputMap) {
			d.left[tensor]++
		}
	}
	ready := map[string]bool{}
	for _, in := range cfg.Input {
		ready[in.Name] = true
		text := "input"
		if in.Optional {
			text = "optional input"
		}
		d.tensor(in.Name, typeText(in.DataType, in.Dims), text)
	}
	done := make([]bool, len(steps))
	for range steps {
		var next []int // steps that can run beside each other
		for i, s := range steps {
			if !done[i] && !slices.ContainsFunc(distinct(s.InputMap), func(t string) bool { return !ready[t] }) {
				next = append(next, i)
			}
		}
		for _, i := range next {
			done[i] = true
			d.step(i, steps[i], next)
			for _, tensor := range distinct(steps[i].OutputMap) {
				ready[tensor] = true
			}
		}
	}
	return d.lines()
}

// distinct are the tensors of a map, each once, in the order of the model's names.
func distinct(m map[string]string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(all, m[name]) {
			all = append(all, m[name])
		}
	}
	return all
}

func typeText(dt configpb.DataType, dims []int64) string {
	return infer.Datatype(dt).String() + " " + strings.ReplaceAll(fmt.Sprint(dims), " ", ",")
}

// lanes draws every column: mark gives the sign of a tensor's, "" the plain one.
func (d *drawing) lanes(mark func(tensor string) string) string {
	var b strings.Builder
	for _, tensor := range d.columns {
		sign := " "
		if tensor != "" {
			if sign = mark(tensor); sign == "" {
				sign = "│"
			}
		}
		b.WriteString(sign + " ")
	}
	return b.String()
}

// tensor begins a tensor's column, where anybody reads it.
func (d *drawing) tensor(name, kind, from string) {
	at := slices.Index(d.columns, "")
	if at < 0 {
		at = len(d.columns)
		d.columns = append(d.columns, "")
	}
	d.columns[at] = name
	d.rows = append(d.rows, drawn{d.lanes(func(t string) string {
		if t == name {
			return "○"
		}
		return ""
	}), fmt.Sprintf("%s  %s  %s", name, kind, from)})
	if d.left[name] == 0 {
		d.columns[at] = ""
	}
}

// step draws a step, the end of what it reads last, and what it makes.
func (d *drawing) step(i int, s *configpb.ModelEnsembling_Step, beside []int) {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.InputMap)) {
		if tensor := s.InputMap[name]; tensor == name {
			pairs = append(pairs, name)
		} else {
			pairs = append(pairs, name+" = "+tensor)
		}
	}
	text := fmt.Sprintf("─▶ step %d: %s (%s)", i, s.ModelName, strings.Join(pairs, ", "))
	if s.ModelVersion >= 0 {
		text += fmt.Sprintf(", version %d", s.ModelVersion)
	}
	if m := d.model(s); m == nil {
		text += ", not known"
	} else if m.GetModelTransactionPolicy().GetDecoupled() {
		text += ", any number of answers"
	}
	if len(beside) > 1 {
		var others []int
		for _, k := range beside {
			if k != i {
				others = append(others, k)
			}
		}
		text += ", beside " + plural2(others)
	}
	reads := distinct(s.InputMap)
	d.rows = append(d.rows, drawn{d.lanes(func(t string) string {
		switch {
		case !slices.Contains(reads, t):
			return ""
		case d.left[t] == 1:
			return "┴"
		}
		return "┼"
	}), text})
	for _, tensor := range reads {
		if d.left[tensor]--; d.left[tensor] == 0 {
			d.columns[slices.Index(d.columns, tensor)] = ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.OutputMap)) {
		d.output(name, s.OutputMap[name], d.model(s))
	}
}

func plural2(steps []int) string {
	if len(steps) == 1 {
		return "step " + list(steps, "and")
	}
	return "steps " + list(steps, "and")
}

// output draws what a step makes: the type is the ensemble's where it is its output, and
// the model's otherwise.
func (d *drawing) output(name, tensor string, m *configpb.ModelConfig) {
	kind, from := "?", ""
	if m != nil {
		for _, out := range m.Output {
			if out.Name == name {
				kind = typeText(out.DataType, out.Dims)
			}
		}
	}
	if name != tensor {
		from = "from " + name
	}
	for _, out := range d.cfg.Output {
		if out.Name == tensor {
			kind = typeText(out.DataType, out.Dims)
			from = strings.TrimSuffix("output, "+from, ", ")
		}
	}
	d.tensor(tensor, kind, from)
}

func (d *drawing) lines() []string {
	lines := make([]string, len(d.rows))
	for i, row := range d.rows {
		lanes := row.lanes
		for n := len([]rune(lanes)); n < 2*len(d.columns); n++ {
			lanes += " "
		}
		if strings.HasPrefix(row.text, "─") { // the step's line begins at the columns that it reads
			lanes = joined(lanes)
		}
		lines[i] = strings.TrimRight(lanes+row.text, " ")
	}
	return lines
}

// joined draws a line from the first column that a step reads to its name.
func joined(lanes string) string {
	out := []rune(lanes)
	on := false
	for i, r := range out {
		switch {
		case r == '┼' || r == '┴':
			if !on && r == '┼' {
				out[i] = '├'
			} else if !on {
				out[i] = '└'
			}
			on = true
		case on && r == '│':
			out[i] = '┼'
		case on && r == ' ':
			out[i] = '─'
		}
	}
	return string(out)
}
