package ensemble

import (
	"slices"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
)

// Config is an ensemble in Go units.
// Source: message ModelEnsembling, proto/modelconfig/model_config.proto.
type Config struct {
	Model   schedule.Model
	Inputs  []string // the ensemble's own
	Outputs []Output
	Steps   []Step
	// MaxInflight is the most requests that each step has under way at one time, of all
	// requests of the ensemble together; 0: no limit.
	MaxInflight int
}

// Output is an output of the ensemble.
type Output struct {
	Name string
	Dims []int64 // without batch; reshaped where the config says so; -1: any
}

// Step is one model of an ensemble.
type Step struct {
	Model   schedule.StepModel
	Inputs  []Port
	Outputs []Port
}

// Port ties a tensor of a step's model to a tensor of the ensemble.
type Port struct{ Name, Tensor string }

// graph is the data flow of an ensemble. It is not changed once it is made.
type graph struct {
	names   []string // of tensors
	inputs  []int    // the ensemble's, as tensors
	outputs []int
	nodes   []node
	readers [][]int // tensor → steps that read it, each once
	writer  []int   // tensor → step that makes it; -1: none, it is an input
	full    *plan   // for all outputs, when no step is decoupled
}

// node is a step.
type node struct {
	in, out   []port
	reads     []int // tensors of in, each once
	requested []infer.RequestedOutput
}

type port struct {
	name   string
	tensor int
}

// newGraph ties the steps. What can't be tied was refused when the ensemble was loaded
// (modelconfig.Validate); here it is a bug.
func newGraph(cfg *Config) *graph {
	g := &graph{}
	index := map[string]int{}
	tensor := func(name string) int {
		at, ok := index[name]
		if !ok {
			at = len(g.names)
			index[name] = at
			g.names = append(g.names, name)
			g.readers = append(g.readers, nil)
			g.writer = append(g.writer, -1)
		}
		return at
	}
	for _, name := range cfg.Inputs {
		g.inputs = append(g.inputs, tensor(name))
	}
	for i, s := range cfg.Steps {
		n := node{}
		for _, p := range s.Inputs {
			at := tensor(p.Tensor)
			n.in = append(n.in, port{p.Name, at})
			if !slices.Contains(n.reads, at) {
				n.reads = append(n.reads, at)
				g.readers[at] = append(g.readers[at], i)
			}
		}
		for _, p := range s.Outputs {
			at := tensor(p.Tensor)
			n.out = append(n.out, port{p.Name, at})
			n.requested = append(n.requested, infer.RequestedOutput{Name: p.Name})
			g.writer[at] = i
		}
		g.nodes = append(g.nodes, n)
	}
	for _, out := range cfg.Outputs {
		g.outputs = append(g.outputs, tensor(out.Name))
	}
	g.full = g.plan(g.outputs, make([]bool, len(g.nodes)))
	return g
}

// plan is what of a graph runs for some outputs, when some steps are decoupled.
//
// Labels say which tensors belong together: 0 are those of the request, and each
// decoupled step's answers have a label of their own, as have the tensors made from
// them. Steps whose inputs have different labels were refused at load.
// Source: decouple_label of the original's ensemble_utils.cc.
type plan struct {
	g         *graph
	wanted    []bool // tensor: it was asked for
	uses      []int  // tensor: steps that will read it, and one for the answer
	needed    []bool // step: something that was asked for comes from it
	decoupled []bool // step: any number of answers
	in, out   []int  // step: the labels of what it reads and writes
	work      []int  // label: steps that run once for each of its frames, and one for the answer
	sink      int    // label of what was asked for
	streams   bool   // a needed step is decoupled
}

func (g *graph) plan(outputs []int, decoupled []bool) *plan {
	p := &plan{g: g, wanted: make([]bool, len(g.names)), uses: make([]int, len(g.names)), needed: make([]bool, len(g.nodes)),
		decoupled: decoupled, in: make([]int, len(g.nodes)), out: make([]int, len(g.nodes))}
	var need func(tensor int)
	need = func(tensor int) {
		i := g.writer[tensor]
		if i < 0 || p.needed[i] {
			return
		}
		p.needed[i] = true
		p.streams = p.streams || decoupled[i]
		for _, t := range g.nodes[i].reads {
			p.uses[t]++
			need(t)
		}
	}
	for _, t := range outputs {
		if !p.wanted[t] {
			p.wanted[t] = true
			p.uses[t]++
			need(t)
		}
	}
	p.label(outputs)
	return p
}

// label follows the data from the inputs, as often as there are steps at most.
func (p *plan) label(outputs []int) {
	labels := make([]int, len(p.g.names))
	next := 1
	done := make([]bool, len(p.g.nodes))
	for range p.g.nodes {
		for i := range p.g.nodes {
			if done[i] || !p.needed[i] || !p.ready(i, done) {
				continue
			}
			done[i] = true
			n := &p.g.nodes[i]
			if len(n.reads) > 0 {
				p.in[i] = labels[n.reads[0]]
			}
			p.out[i] = p.in[i]
			if p.decoupled[i] {
				p.out[i] = next
				next++
			}
			for _, o := range n.out {
				labels[o.tensor] = p.out[i]
			}
		}
	}
	if len(outputs) > 0 {
		p.sink = labels[outputs[0]]
	}
	p.work = make([]int, next)
	p.work[p.sink]++
	for i := range p.g.nodes {
		if p.needed[i] {
			p.work[p.in[i]]++
		}
	}
}

func (p *plan) ready(i int, done []bool) bool {
	for _, t := range p.g.nodes[i].reads {
		if w := p.g.writer[t]; w >= 0 && !done[w] {
			return false
		}
	}
	return true
}

// planFor is the plan for what a request asks for; none means all outputs. decoupled may
// be nil where no step is.
func (g *graph) planFor(requested []infer.RequestedOutput, decoupled []bool) *plan {
	if len(requested) == 0 && !slices.Contains(decoupled, true) {
		return g.full
	}
	outputs := g.outputs
	if len(requested) > 0 {
		outputs = make([]int, 0, len(requested))
		for _, t := range g.outputs {
			if slices.ContainsFunc(requested, func(o infer.RequestedOutput) bool { return o.Name == g.names[t] }) {
				outputs = append(outputs, t)
			}
		}
		if len(outputs) == len(g.outputs) && !slices.Contains(decoupled, true) {
			return g.full
		}
	}
	if decoupled == nil {
		decoupled = make([]bool, len(g.nodes))
	}
	return g.plan(outputs, decoupled)
}
