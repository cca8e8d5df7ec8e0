package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serve/sluice/gateway/modelconfig"
)

// maxFile bounds the bytes of a file that says something of identity or policy.
const maxFile = 4 << 20

// faults gathers what is wrong with a file, each with its line.
type faults struct {
	file string
	errs []error
}

func (f *faults) at(n *yaml.Node, format string, args ...any) {
	if len(f.errs) < 20 {
		f.errs = append(f.errs, fmt.Errorf("%s:%d: %s", f.file, n.Line, fmt.Sprintf(format, args...)))
	}
}

func (f *faults) err() error { return errors.Join(f.errs...) }

// document reads a file's one YAML document; nil: it is empty.
func (f *faults) document(data []byte) *yaml.Node {
	if len(data) > maxFile {
		f.errs = append(f.errs, fmt.Errorf("%s: %d bytes, at most %d", f.file, len(data), maxFile))
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			f.errs = append(f.errs, fmt.Errorf("%s: %w", f.file, err))
		}
		return nil
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		f.errs = append(f.errs, fmt.Errorf("%s: one document, and nothing behind it", f.file))
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return doc.Content[0]
}

// field is what a mapping may have under one key.
type field struct {
	name string
	read func(value *yaml.Node)
}

// mapping reads a mapping whose keys are those of fields and no others.
func (f *faults) mapping(n *yaml.Node, what string, fields ...field) {
	if n.Kind != yaml.MappingNode {
		f.at(n, "%s is to be a mapping", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := slices.IndexFunc(fields, func(x field) bool { return x.name == key.Value })
		switch {
		case at < 0:
			f.unknown(key, what, fields)
		case seen[key.Value]:
			f.at(key, "'%s' is given twice", key.Value)
		case value.Kind == yaml.AliasNode || key.Kind != yaml.ScalarNode:
			f.at(value, "aliases are not read here")
		default:
			seen[key.Value] = true
			fields[at].read(value)
		}
	}
}

func (f *faults) unknown(key *yaml.Node, what string, fields []field) {
	var names []string
	for _, x := range fields {
		names = append(names, x.name)
	}
	if near := modelconfig.Nearest(key.Value, names); near != "" {
		f.at(key, "%s has no '%s'; did you mean '%s'?", what, key.Value, near)
		return
	}
	f.at(key, "%s has no '%s'; there are %s", what, key.Value, strings.Join(names, ", "))
}

// list calls each for each element of a sequence.
func (f *faults) list(n *yaml.Node, what string, each func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		f.at(n, "%s is to be a list", what)
		return
	}
	for _, e := range n.Content {
		if e.Kind == yaml.AliasNode {
			f.at(e, "aliases are not read here")
			continue
		}
		each(e)
	}
}

// text reads a scalar that is not empty.
func (f *faults) text(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" || n.Value == "" {
		f.at(n, "%s is to be a text", what)
		return ""
	}
	return n.Value
}

// texts reads a list of texts, or one text alone.
func (f *faults) texts(n *yaml.Node, what string) []string {
	if n.Kind == yaml.ScalarNode {
		if s := f.text(n, what); s != "" {
			return []string{s}
		}
		return nil
	}
	var all []string
	f.list(n, what, func(e *yaml.Node) {
		if s := f.text(e, what); s != "" {
			all = append(all, s)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		f.at(n, "%s is empty", what)
	}
	return all
}

// textInto, textsInto make a field of a text and of a list of them.
func (f *faults) textInto(name string, p *string) field {
	return field{name, func(n *yaml.Node) { *p = f.text(n, "'"+name+"'") }}
}

func (f *faults) textsInto(name string, p *[]string) field {
	return field{name, func(n *yaml.Node) { *p = f.texts(n, "'"+name+"'") }}
}
