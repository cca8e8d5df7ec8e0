package modelconfig

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// MaxSize is the most bytes a config file may have.
const MaxSize = 16 << 20

const (
	maxDepth    = 64      // of nested messages; the schema needs 7
	maxMessages = 1 << 16 // in one file
	maxFaults   = 20      // reported of one file
)

// Parse reads a model config in protobuf text format. file is its name in messages.
// The Source says where the fields stood. An error is InvalidArg and carries all
// faults found (FaultsOf): unknown fields, values that don't fit, fields given twice.
// Source: message ModelConfig, proto/modelconfig/model_config.proto.
func Parse(file string, data []byte) (*modelconfig.ModelConfig, *Source, error) {
	cfg := &modelconfig.ModelConfig{}
	p := &parser{file: file, src: &Source{File: file, at: map[string]Pos{}}}
	if len(data) > MaxSize {
		return nil, nil, infer.Errorf(infer.InvalidArg, "%w", Faults{{File: file,
			Msg: fmt.Sprintf("the file has %d bytes, the most is %d", len(data), MaxSize)}})
	}
	p.lex.src = strings.TrimPrefix(string(data), "\ufeff")
	err := p.advance()
	if err == nil {
		err = p.message(cfg.ProtoReflect(), "", "", 0)
	}
	var syntax *syntaxError
	if errors.As(err, &syntax) {
		p.fault(syntax.at, "", "%s", syntax.msg)
	}
	if err := p.faults.err(); err != nil {
		return nil, nil, err
	}
	return cfg, p.src, nil
}

type parser struct {
	file     string
	lex      lexer
	tok      token // the next one
	src      *Source
	faults   Faults
	messages int
	offset   int // that pos is the place of
	pos      Pos
}

func (p *parser) advance() (err error) {
	p.tok, err = p.lex.next()
	return err
}

// position counts on from the last call, since offsets mostly grow.
func (p *parser) position(at int) Pos {
	if at < p.offset || p.pos.Line == 0 {
		p.offset, p.pos = 0, Pos{1, 1}
	}
	between := p.lex.src[p.offset:at]
	p.offset = at
	if n := strings.LastIndexByte(between, '\n'); n >= 0 {
		p.pos.Line += strings.Count(between, "\n")
		p.pos.Column, between = 1, between[n+1:]
	}
	p.pos.Column += utf8.RuneCountInString(between)
	return p.pos
}

func (p *parser) fault(at int, path, format string, args ...any) {
	if len(p.faults) < maxFaults {
		p.faults = append(p.faults, Fault{File: p.file, Pos: p.position(at), Path: path, Msg: fmt.Sprintf(format, args...)})
	}
}

func (p *parser) syntax(format string, args ...any) error {
	return &syntaxError{p.tok.at, fmt.Sprintf(format, args...)}
}

// message reads fields until the closing bracket, or the end of the file where that
// is "".
func (p *parser) message(m protoreflect.Message, path, closing string, depth int) error {
	if depth > maxDepth {
		return p.syntax("messages are nested more than %d deep", maxDepth)
	}
	if p.messages++; p.messages > maxMessages {
		return p.syntax("the file has more than %d messages", maxMessages)
	}
	opened := p.tok.at
	seen := map[protoreflect.Name]int{}
	for {
		switch {
		case len(p.faults) == maxFaults-1:
			return p.syntax("there are more faults; the rest of the file was not read")
		case p.tok.kind == end && closing == "", closing != "" && p.tok.is(closing):
			return nil
		case p.tok.kind == end:
			at := p.position(opened)
			return p.syntax("%q is missing: the message opened at line %d, column %d is not closed", closing, at.Line, at.Column)
		case p.tok.is(",") || p.tok.is(";"):
			// Stray separators are harmless, and common after a removed field.
			if err := p.advance(); err != nil {
				return err
			}
			continue
		case p.tok.is("/"):
			return p.syntax("expected a field name, got %s; comments begin with #", p.tok.describe())
		case p.tok.kind != ident:
			return p.syntax("expected a field name, got %s", p.tok.describe())
		}
		if err := p.field(m, path, seen, depth); err != nil {
			return err
		}
	}
}

func (p *parser) field(m protoreflect.Message, path string, seen map[protoreflect.Name]int, depth int) error {
	name := p.tok
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(name.str))
	if path != "" {
		path += "."
	}
	path += name.str
	colon, err := p.colon()
	if err != nil {
		return err
	}
	if fd == nil {
		p.fault(name.at, path, "unknown field %q in %s%s", name.str, m.Descriptor().Name(),
			suggestion(name.str, fieldNames(m.Descriptor())))
		if !colon && !p.tok.is("{") && !p.tok.is("<") && !p.tok.is("[") {
			return p.syntax("expected \":\" after %q, got %s", name.str, p.tok.describe())
		}
		return p.skip(depth)
	}
	p.checkTwice(fd, name, path, seen)
	if fd.Message() == nil && !colon {
		return p.syntax("expected \":\" after %q, got %s", name.str, p.tok.describe())
	}
	if _, ok := p.src.at[path]; !ok {
		p.src.at[path] = p.position(name.at)
	}
	if p.tok.is("[") {
		return p.list(m, fd, name, path, depth)
	}
	return p.value(m, fd, name.at, path, depth)
}

// checkTwice reports singular fields that are given again and the second of a oneof.
func (p *parser) checkTwice(fd protoreflect.FieldDescriptor, name token, path string, seen map[protoreflect.Name]int) {
	if fd.Cardinality() == protoreflect.Repeated {
		return
	}
	if first, ok := seen[fd.Name()]; ok {
		at := p.position(first)
		p.fault(name.at, path, "%q is given twice, first at line %d", name.str, at.Line)
	} else if one := fd.ContainingOneof(); one != nil {
		for i := range one.Fields().Len() {
			other := one.Fields().Get(i).Name()
			if first, ok := seen[other]; ok {
				at := p.position(first)
				p.fault(name.at, path, "%q can't be given together with %q, which stands at line %d", name.str, other, at.Line)
			}
		}
	}
	seen[fd.Name()] = name.at
}

// list reads "[ value, … ]" of a repeated field.
func (p *parser) list(m protoreflect.Message, fd protoreflect.FieldDescriptor, name token, path string, depth int) error {
	if fd.Cardinality() != protoreflect.Repeated {
		p.fault(p.tok.at, path, "%q takes one value, not a list", name.str)
		return p.skip(depth)
	}
	if err := p.advance(); err != nil {
		return err
	}
	for !p.tok.is("]") {
		if err := p.value(m, fd, p.tok.at, path, depth); err != nil {
			return err
		}
		switch {
		case p.tok.is(","):
			if err := p.advance(); err != nil {
				return err
			}
		case !p.tok.is("]"):
			return p.syntax("expected \",\" or \"]\" in the list of %q, got %s", name.str, p.tok.describe())
		}
	}
	return p.advance()
}

// value reads one value and sets or appends it.
func (p *parser) value(m protoreflect.Message, fd protoreflect.FieldDescriptor, at int, path string, depth int) error {
	switch {
	case fd.IsMap():
		return p.entry(m, fd, path, depth)
	case fd.IsList():
		list := m.Mutable(fd).List()
		if fd.Message() == nil {
			v, ok, err := p.scalar(fd, path)
			if ok {
				list.Append(v)
			}
			return err
		}
		path = fmt.Sprintf("%s[%d]", path, list.Len())
		p.src.at[path] = p.position(at)
		return p.braces(list.AppendMutable().Message(), fd, path, depth)
	case fd.Message() != nil:
		return p.braces(m.Mutable(fd).Message(), fd, path, depth)
	}
	v, ok, err := p.scalar(fd, path)
	if ok {
		m.Set(fd, v)
	}
	return err
}

// entry reads one entry of a map: a message with the fields key and value.
func (p *parser) entry(m protoreflect.Message, fd protoreflect.FieldDescriptor, path string, depth int) error {
	closing, err := p.open(fd)
	if err != nil {
		return err
	}
	if p.messages++; p.messages > maxMessages {
		return p.syntax("the file has more than %d messages", maxMessages)
	}
	key, value := fd.MapKey().Default(), m.Mutable(fd).Map().NewValue()
	for !p.tok.is(closing) {
		if p.tok.is(",") || p.tok.is(";") {
			if err := p.advance(); err != nil {
				return err
			}
			continue
		}
		if err := p.half(fd, &key, &value, path, depth); err != nil {
			return err
		}
	}
	m.Mutable(fd).Map().Set(key.MapKey(), value)
	return p.advance()
}

// half reads the key or the value of a map's entry.
func (p *parser) half(fd protoreflect.FieldDescriptor, key, value *protoreflect.Value, path string, depth int) error {
	name := p.tok
	if name.kind != ident {
		return p.syntax("expected \"key\" or \"value\" in %q, got %s", fd.Name(), name.describe())
	}
	colon, err := p.colon()
	if err != nil {
		return err
	}
	part, to := fd.MapValue(), value
	switch name.str {
	case "key":
		part, to = fd.MapKey(), key
	case "value":
	default:
		p.fault(name.at, path, "unknown field %q in an entry of %q, which has \"key\" and \"value\"", name.str, fd.Name())
		return p.skip(depth)
	}
	if part.Message() != nil {
		return p.braces(value.Message(), part, path+"."+name.str, depth)
	}
	if !colon {
		return p.syntax("expected \":\" after %q, got %s", name.str, p.tok.describe())
	}
	v, ok, err := p.scalar(part, path)
	if ok {
		*to = v
	}
	return err
}

// colon passes over a field's name and the colon behind it, if there is one.
func (p *parser) colon() (bool, error) {
	if err := p.advance(); err != nil || !p.tok.is(":") {
		return false, err
	}
	return true, p.advance()
}

// open takes the bracket that a message begins with and returns the one that ends it.
func (p *parser) open(fd protoreflect.FieldDescriptor) (closing string, err error) {
	switch {
	case p.tok.is("{"):
		closing = "}"
	case p.tok.is("<"):
		closing = ">"
	default:
		return "", p.syntax("expected \"{\" after %q, got %s", fd.Name(), p.tok.describe())
	}
	return closing, p.advance()
}

func (p *parser) braces(m protoreflect.Message, fd protoreflect.FieldDescriptor, path string, depth int) error {
	closing, err := p.open(fd)
	if err != nil {
		return err
	}
	if err := p.message(m, path, closing, depth+1); err != nil {
		return err
	}
	return p.advance()
}

// skip passes over the value of a field that is not known.
func (p *parser) skip(depth int) error {
	if depth > maxDepth {
		return p.syntax("messages are nested more than %d deep", maxDepth)
	}
	closing := map[string]string{"{": "}", "<": ">", "[": "]"}[p.tok.str]
	if p.tok.kind != punct || closing == "" {
		if p.tok.is("-") {
			if err := p.advance(); err != nil {
				return err
			}
		}
		if p.tok.kind == punct || p.tok.kind == end {
			return p.syntax("expected a value, got %s", p.tok.describe())
		}
		first := p.tok.kind
		for {
			if err := p.advance(); err != nil {
				return err
			}
			if first != text || p.tok.kind != text {
				return nil
			}
		}
	}
	if err := p.advance(); err != nil {
		return err
	}
	for !p.tok.is(closing) {
		var err error
		switch {
		case p.tok.kind == end:
			return p.syntax("%q is missing", closing)
		case p.tok.is("{") || p.tok.is("<") || p.tok.is("["):
			err = p.skip(depth + 1)
		case p.tok.is("}") || p.tok.is(">") || p.tok.is("]"):
			return p.syntax("expected %q, got %s", closing, p.tok.describe())
		default:
			err = p.advance()
		}
		if err != nil {
			return err
		}
	}
	return p.advance()
}

// scalar reads a value that is no message. ok is false where it was reported.
func (p *parser) scalar(fd protoreflect.FieldDescriptor, path string) (v protoreflect.Value, ok bool, err error) {
	if p.tok.kind == text {
		return p.str(fd, path)
	}
	start, negative := p.tok.at, p.tok.is("-")
	if negative {
		if err := p.advance(); err != nil {
			return v, false, err
		}
	}
	t := p.tok
	if t.kind != ident && t.kind != number {
		if t.is("{") || t.is("<") || t.is("[") {
			p.fault(t.at, path, "%q is %s, not a message", fd.Name(), kindName(fd))
			return v, false, p.skip(0)
		}
		return v, false, p.syntax("expected a value for %q, got %s", fd.Name(), t.describe())
	}
	v, ok, why := convert(fd, t, negative)
	if !ok {
		written := t.str
		if negative {
			written = "-" + written
		}
		p.fault(start, path, "%q is %s, not %s%s", fd.Name(), kindName(fd), written, why)
	}
	return v, ok, p.advance()
}

// str reads one or more adjacent strings.
func (p *parser) str(fd protoreflect.FieldDescriptor, path string) (v protoreflect.Value, ok bool, err error) {
	start := p.tok.at
	var whole strings.Builder
	for p.tok.kind == text {
		whole.WriteString(p.tok.str)
		if err := p.advance(); err != nil {
			return v, false, err
		}
	}
	if fd.Kind() != protoreflect.StringKind {
		why := ""
		if fd.Kind() == protoreflect.EnumKind || fd.Kind() == protoreflect.BoolKind {
			why = "; write it without quotes"
		}
		p.fault(start, path, "%q is %s, not a string%s", fd.Name(), kindName(fd), why)
		return v, false, nil
	}
	return protoreflect.ValueOfString(whole.String()), true, nil
}
