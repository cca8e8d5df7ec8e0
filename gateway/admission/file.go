package admission

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/internal/configfile"
)

// The bounds of a file.
const (
	MaxFile      = 1 << 20 // bytes
	maxRules     = 1000
	maxWeight    = 1000
	defaultTrack = 65536
	maxTrack     = 1 << 22
)

// file is the form of a limits file.
type file struct {
	Track   *int         `yaml:"track"`
	Rules   []fileRule   `yaml:"rules"`
	Weights []fileWeight `yaml:"weights"`
}

type fileRule struct {
	Name       string `yaml:"name"`
	Principals texts  `yaml:"principals"`
	Groups     texts  `yaml:"groups"`
	Models     texts  `yaml:"models"`
	Actions    texts  `yaml:"actions"`
	Each       string `yaml:"each"`
	At         string `yaml:"at"`
	Shadow     bool   `yaml:"shadow"`
	Last       bool   `yaml:"last"`

	Requests      *fileRate `yaml:"requests"`
	Bytes         *fileRate `yaml:"bytes"`
	Elements      *fileRate `yaml:"elements"`
	Compute       *fileRate `yaml:"compute"`
	Concurrency   string    `yaml:"concurrency"`
	BytesInFlight string    `yaml:"bytes_in_flight"`
	Sequences     string    `yaml:"sequences"`

	line int
}

type fileWeight struct {
	Principals texts `yaml:"principals"`
	Groups     texts `yaml:"groups"`
	Weight     int   `yaml:"weight"`
}

// texts is a list, or its one element.
type texts []string

// UnmarshalYAML takes one text too.
func (t *texts) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*t = texts{n.Value}
		return nil
	}
	return n.Decode((*[]string)(t))
}

// fileRate is "100/s", or a rate with a burst of its own.
type fileRate struct {
	Rate  string `yaml:"rate"`
	Burst string `yaml:"burst"`
}

// UnmarshalYAML takes a rate alone too.
func (r *fileRate) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		r.Rate = n.Value
		return nil
	}
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Value != "rate" && k.Value != "burst" {
			return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: field %s not found: want rate or burst", k.Line, k.Value)}}
		}
	}
	type plain fileRate
	return n.Decode((*plain)(r))
}

// UnmarshalYAML keeps the line for what is said of a rule, and refuses fields that it
// does not know, which the library does not inside an Unmarshaler.
func (r *fileRule) UnmarshalYAML(n *yaml.Node) error {
	r.line = n.Line
	known := []string{"name", "principals", "groups", "models", "actions", "each", "at", "shadow", "last", "requests", "bytes", "elements",
		"compute", "concurrency", "bytes_in_flight", "sequences"}
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if k := n.Content[i]; !slices.Contains(known, k.Value) {
			return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: field %s not found: want one of %s", k.Line, k.Value, strings.Join(known, ", "))}}
		}
	}
	type plain fileRule
	return n.Decode((*plain)(r))
}

// emptyList is the list that says in words that nothing is limited, empty.
const emptyList = "rules"

// Parse reads a limits file. Its error names all faults, with their lines as far as the
// text has lines for them. A text that says nothing is one; see configfile.Document.
func Parse(text []byte) (*Rules, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("the file has %d bytes, the most is %d", len(text), MaxFile)
	}
	if err := configfile.Document(text, emptyList); err != nil {
		return nil, err
	}
	var f file
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one YAML document")
	}
	c := compiler{names: map[string]bool{}, out: &Rules{track: defaultTrack}}
	return c.file(&f)
}

// compiler turns a file into rules and collects what is wrong.
type compiler struct {
	out    *Rules
	names  map[string]bool
	faults []error
}

func (c *compiler) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf(format, args...))
}

func (c *compiler) file(f *file) (*Rules, error) {
	if f.Track != nil {
		c.out.track = *f.Track
		if *f.Track < 1 || *f.Track > maxTrack {
			c.fault("track is %d, want 1 to %d", *f.Track, maxTrack)
		}
	}
	if len(f.Rules) > maxRules || len(f.Weights) > maxRules {
		c.fault("%d rules and %d weights, the most is %d of each", len(f.Rules), len(f.Weights), maxRules)
		return nil, errors.Join(c.faults...)
	}
	for i := range f.Rules {
		c.rule(i, &f.Rules[i])
	}
	for i, w := range f.Weights {
		if w.Weight < 1 || w.Weight > maxWeight {
			c.fault("weights: number %d: the weight is %d, want 1 to %d", i+1, w.Weight, maxWeight)
		}
		c.out.weights = append(c.out.weights, Weight{w.Principals, w.Groups, w.Weight})
	}
	if len(c.faults) > 0 {
		return nil, errors.Join(c.faults...)
	}
	return c.out, nil
}

func (c *compiler) rule(i int, f *fileRule) {
	where := fmt.Sprintf("line %d: rule %q", f.line, f.Name)
	if f.Name == "" || len(f.Name) > 128 || strings.ContainsFunc(f.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		c.fault("%s: want a name of 1 to 128 printable bytes", where)
	}
	if c.names[f.Name] {
		c.fault("%s: an earlier rule has this name", where)
	}
	c.names[f.Name] = true
	r := &Rule{Name: f.Name, principals: f.Principals, groups: f.Groups, models: f.Models, shadow: f.Shadow, last: f.Last, index: i}
	each := slices.Index(eachNames, f.Each)
	if each < 0 && f.Each != "" {
		c.fault("%s: each is %q, want one of %s", where, f.Each, strings.Join(eachNames, ", "))
	}
	r.each = Each(max(each, 0))
	switch f.At {
	case "", "gateway":
	case "envoy":
		r.envoy = true
	default:
		c.fault("%s: at is %q, want gateway or envoy", where, f.At)
	}
	r.actions = c.actions(where, f.Actions)
	for kind, rate := range []*fileRate{Requests: f.Requests, Bytes: f.Bytes, Elements: f.Elements, Compute: f.Compute} {
		if rate != nil {
			c.rate(where, r, Kind(kind), rate)
		}
	}
	c.most(where, r, Concurrency, f.Concurrency)
	c.most(where, r, BytesInFlight, f.BytesInFlight)
	c.most(where, r, Sequences, f.Sequences)
	// what is held comes first: a call that it refuses has spent nothing
	slices.SortFunc(r.limits, func(a, b *Limit) int { return int(b.Kind) - int(a.Kind) })
	if len(r.limits) == 0 && !r.last {
		c.fault("%s: it limits nothing: give one of %s", where, strings.Join(kindNames[:], ", "))
	}
	for _, l := range r.limits {
		if r.envoy && l.Kind != Requests && l.Kind != Bytes {
			c.fault("%s: Envoy can count requests and bytes, not %s", where, l.Kind)
		}
	}
	c.out.sequences = c.out.sequences || f.Sequences != ""
	c.out.byModel = c.out.byModel || r.dependsOnModel()
	c.out.remote = c.out.remote || r.each == EachRemote
	c.out.rules = append(c.out.rules, r)
}

func (c *compiler) actions(where string, names []string) (set uint32) {
	if len(names) == 0 {
		return 1 << infer.ActionInference
	}
	for _, name := range names {
		found := false
		for _, a := range infer.Actions() {
			if name == "*" || a.String() == name {
				set |= 1 << a
				found = true
			}
		}
		if !found {
			c.fault("%s: there is no action %q", where, name)
		}
	}
	return set
}

func (c *compiler) rate(where string, r *Rule, kind Kind, f *fileRate) {
	amount, period, ok := strings.Cut(f.Rate, "/")
	units, err := quantity(kind, amount)
	seconds, bad := seconds(period)
	if !ok || err != nil || bad != nil {
		c.fault("%s: %s is %q, want a rate like %s", where, kind, f.Rate, example(kind))
		return
	}
	l := &Limit{Kind: kind, Rate: units / seconds}
	l.Burst = max(l.Rate, 1)
	if seconds > 1 { // "10/min" may come at once
		l.Burst = max(units, 1)
	}
	if f.Burst != "" {
		if l.Burst, err = quantity(kind, f.Burst); err != nil || l.Burst < 1 {
			c.fault("%s: the burst of %s is %q, want an amount like %s", where, kind, f.Burst, strings.SplitN(example(kind), "/", 2)[0])
			return
		}
	}
	if l.Rate < 1e-6 || l.Rate > 1e15 || l.Burst > 1e15 {
		c.fault("%s: %s is %q, which is out of range", where, kind, f.Rate)
		return
	}
	l.text = kind.String() + " " + f.Rate
	l.speed = newSpeed(l.Rate, l.Burst)
	r.limits = append(r.limits, l)
}

func example(kind Kind) string {
	return [...]string{"100/s", "50MiB/s", "1000000/s", "500ms/s"}[kind]
}

func (c *compiler) most(where string, r *Rule, kind Kind, text string) {
	if text == "" {
		return
	}
	n, err := quantity(kind, text)
	if err != nil || n < 1 || n > 1e15 || n != math.Trunc(n) {
		c.fault("%s: %s is %q, want a whole number from 1 on", where, kind, text)
		return
	}
	l := &Limit{Kind: kind, Most: int64(n), text: kind.String() + " " + text}
	r.limits = append(r.limits, l)
}

// seconds reads a period: s, m, min, h, d, or a duration like 10s.
func seconds(text string) (float64, error) {
	switch text {
	case "s", "second":
		return 1, nil
	case "m", "min", "minute":
		return 60, nil
	case "h", "hour":
		return 3600, nil
	case "d", "day":
		return 86400, nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("no time")
	}
	return d.Seconds(), err
}

// number is what an amount begins with: no sign, no exponent, no words like inf.
var number = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?`)

// quantity reads an amount in a kind's units: bytes may have a suffix, compute time is a
// duration.
func quantity(kind Kind, text string) (float64, error) {
	if kind == Compute {
		d, err := time.ParseDuration(text)
		if err == nil && d <= 0 {
			err = errors.New("no time")
		}
		return float64(d) / 1e3, err
	}
	digits := number.FindString(text)
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, err
	}
	suffix := text[len(digits):]
	if suffix == "" {
		return n, nil
	}
	if kind != Bytes && kind != BytesInFlight {
		return 0, fmt.Errorf("%q is no number", text)
	}
	unit, ok := map[string]float64{"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[suffix]
	if !ok {
		return 0, fmt.Errorf("%q has no unit of bytes", text)
	}
	return n * unit, nil
}
