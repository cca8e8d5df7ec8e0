package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Reading is one attempt to read the files of a configuration. It is valid while load runs.
type Reading struct {
	limit int64
	now   time.Time
	files map[string]*file
	read  map[string]bool // the files that were read
	fresh bool            // some of them were read for the first time, and are not settled
	first bool            // it is the start: one look counts
}

// File is Text for a file that is never empty: an empty one is an error, which wraps ErrEmpty.
func (r *Reading) File(name string) ([]byte, error) {
	data, err := r.Text(name)
	if err == nil && len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	return data, err
}

// Text gives the content of a file, which belongs to the Reading. Errors name the file: it can't be read, has more bytes
// than the limit, or is cut, which is to say that it ends amid a line of the file in force and has nothing else. It may
// be empty: who reads it has to refuse that, in the words of its kind.
func (r *Reading) Text(name string) ([]byte, error) {
	one := r.files[name]
	if one == nil {
		one = &file{stamp: stampOf(name), since: r.now} // before the reading: what changes meanwhile is read again
		one.data, one.err = Read(name, r.limit)
		one.settled = r.first
		r.files[name] = one
		r.fresh = true
	}
	r.read[name] = true
	if one.err != nil {
		return nil, one.err
	}
	if cut(one.inForce, one.data) {
		return nil, fmt.Errorf("%s is cut: it ends amid a line of the file in force", name)
	}
	return one.data, nil
}

// YAML is Text for a file with one YAML document. It is an error that the document says nothing (see Document, which has
// list), and that something which the document in force has at its top is not there any more. Who means that writes it
// out, as an empty list ([]), an empty mapping ({}) or an empty text.
func (r *Reading) YAML(name, list string) ([]byte, error) {
	data, err := r.Text(name)
	if err != nil {
		return nil, err
	}
	if err := Document(data, list); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if gone := lost(r.files[name].inForce, data); len(gone) > 0 {
		return nil, fmt.Errorf("%s: the file in force has more at its top; write %s if that is meant to be gone",
			name, strings.Join(gone, ", "))
	}
	return data, nil
}

// cut says that a text is the beginning of an older one up to the middle of a line.
func cut(old, text []byte) bool {
	n := len(text)
	if n == 0 || n >= len(old) || text[n-1] == '\n' || !bytes.HasPrefix(old, text) {
		return false
	}
	rest := bytes.TrimLeft(old[n:], " \t\r")
	return len(rest) > 0 && rest[0] != '\n'
}

// Document refuses a YAML text whose document says nothing, with an error that wraps ErrEmpty: there is none, it is null
// or {}, or all that stands at its top is null, as after 'rules:' with no rules. list is the list at the top by which
// such a file says in words that it is meant to say nothing, empty; "": there is no such thing. A text that is no YAML is
// not refused here: who decodes it says what is wrong.
func Document(text []byte, list string) error {
	var doc yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	root := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	if len(doc.Content) > 0 {
		root = doc.Content[0]
	}
	if !null(root) && (root.Kind != yaml.MappingNode || len(said(root)) > 0) {
		return nil
	}
	if list == "" {
		return ErrEmpty
	}
	return fmt.Errorf("%w; write '%s: []' if that is meant", ErrEmpty, list)
}

// null says that a node has no content, not even an empty one.
func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// said are the keys of a mapping whose values are not null.
func said(root *yaml.Node) map[string]*yaml.Node {
	keys := map[string]*yaml.Node{}
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		if v := root.Content[i+1]; !null(v) {
			keys[root.Content[i].Value] = v
		}
	}
	return keys
}

// lost are the keys at the top of an old document, with content, that a new one has not, or as null: in their order, each
// with what says in words that it is meant to be gone.
func lost(old, text []byte) (keys []string) {
	var before, after yaml.Node
	if old == nil || yaml.Unmarshal(old, &before) != nil || yaml.Unmarshal(text, &after) != nil ||
		len(before.Content) == 0 || len(after.Content) == 0 {
		return nil
	}
	now := said(after.Content[0])
	root := before.Content[0]
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i].Value, root.Content[i+1]
		words := ""
		switch {
		case now[name] != nil || null(value):
		case value.Kind == yaml.ScalarNode && value.Value != "":
			words = fmt.Sprintf("'%s' with its default, or \"\" for none", name)
		case value.Kind == yaml.SequenceNode && len(value.Content) > 0:
			words = fmt.Sprintf("'%s: []'", name)
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			words = fmt.Sprintf("'%s: {}'", name)
		}
		if words != "" {
			keys = append(keys, words)
		}
	}
	return keys
}
