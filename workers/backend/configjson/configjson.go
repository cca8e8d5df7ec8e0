// Package configjson writes model configs as Triton hands them to backends and to Python models. The Python backend and
// the host of Triton's backends call it. There is no state.
package configjson

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// Of is a config in JSON: names as in the proto, in its order, fields without presence always, 64-bit integers as
// numbers, enums by name.
func Of(c *modelconfig.ModelConfig) []byte {
	w := writer{}
	w.message(c.ProtoReflect())
	return w.b
}

type writer struct{ b []byte }

func (w *writer) message(m protoreflect.Message) {
	w.b = append(w.b, '{')
	first := true
	for _, fd := range ordered(m.Descriptor().Fields()) {
		if fd.HasPresence() && !m.Has(fd) {
			continue
		}
		if !first {
			w.b = append(w.b, ',')
		}
		first = false
		w.b = append(AppendText(w.b, string(fd.Name())), ':')
		switch v := m.Get(fd); {
		case fd.IsMap():
			w.mapping(fd, v.Map())
		case fd.IsList():
			w.list(fd, v.List())
		default:
			w.value(fd, v)
		}
	}
	w.b = append(w.b, '}')
}

// ordered are the fields in the order of their declaration, but for scalars of a oneof, which come last.
func ordered(fields protoreflect.FieldDescriptors) []protoreflect.FieldDescriptor {
	all := make([]protoreflect.FieldDescriptor, 0, fields.Len())
	var last []protoreflect.FieldDescriptor
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.ContainingOneof() != nil && fd.Message() == nil {
			last = append(last, fd)
		} else {
			all = append(all, fd)
		}
	}
	return append(all, last...)
}

func (w *writer) list(fd protoreflect.FieldDescriptor, list protoreflect.List) {
	w.b = append(w.b, '[')
	for i := range list.Len() {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.value(fd, list.Get(i))
	}
	w.b = append(w.b, ']')
}

func (w *writer) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]string, 0, m.Len())
	byText := map[string]protoreflect.Value{}
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		keys = append(keys, k.String())
		byText[k.String()] = v
		return true
	})
	slices.Sort(keys)
	w.b = append(w.b, '{')
	for i, k := range keys {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = append(AppendText(w.b, k), ':')
		w.value(fd.MapValue(), byText[k])
	}
	w.b = append(w.b, '}')
}

func (w *writer) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		w.message(v.Message())
	case protoreflect.StringKind:
		w.b = AppendText(w.b, v.String())
	case protoreflect.BytesKind:
		w.b = append(base64.StdEncoding.AppendEncode(append(w.b, '"'), v.Bytes()), '"')
	case protoreflect.BoolKind:
		w.b = strconv.AppendBool(w.b, v.Bool())
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			w.b = AppendText(w.b, string(e.Name()))
		} else {
			w.b = strconv.AppendInt(w.b, int64(v.Enum()), 10)
		}
	case protoreflect.FloatKind:
		w.b = strconv.AppendFloat(w.b, v.Float(), 'g', -1, 32)
	case protoreflect.DoubleKind:
		w.b = strconv.AppendFloat(w.b, v.Float(), 'g', -1, 64)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		w.b = strconv.AppendUint(w.b, v.Uint(), 10)
	default:
		if texts[fd.FullName()] {
			w.b = append(strconv.AppendInt(append(w.b, '"'), v.Int(), 10), '"')
			return
		}
		w.b = strconv.AppendInt(w.b, v.Int(), 10)
	}
}

// texts are the 64-bit numbers that Triton leaves in JSON's text form. Source: ModelConfigToJson of Triton's core, which
// makes numbers of all others.
var texts = map[protoreflect.FullName]bool{
	"inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim": true,
	"inference.ModelInstanceGroup.SecondaryDevice.device_id":     true,
	"inference.ModelSequenceBatching.InitialState.dims":          true,
}

// AppendText writes a string as Triton's JSON library does: of what needs no escape, nothing is escaped. Bytes that are no
// UTF-8 stay as they are.
func AppendText(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case strings.IndexByte("\b\f\n\r\t", c) >= 0:
			b = append(b, '\\', "bfnrt"[strings.IndexByte("\b\f\n\r\t", c)])
		default:
			b = fmt.Appendf(b, "\\u%04X", c)
		}
	}
	return append(b, '"')
}
