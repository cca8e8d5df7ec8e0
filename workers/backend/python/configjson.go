package python

import (
	"encoding/base64"
	"slices"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-serve/sluice/proto/modelconfig"
)

// configJSON is a config as Triton gives it to models: names as in the proto, in its order,
// fields without presence always, 64-bit integers as numbers, enums by name.
func configJSON(c *modelconfig.ModelConfig) []byte {
	w := configWriter{}
	w.message(c.ProtoReflect())
	return w.b
}

type configWriter struct{ b []byte }

func (w *configWriter) message(m protoreflect.Message) {
	w.b = append(w.b, '{')
	first := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.HasPresence() && !m.Has(fd) {
			continue
		}
		if !first {
			w.b = append(w.b, ',')
		}
		first = false
		w.b = append(appendJSON(w.b, string(fd.Name())), ':')
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

func (w *configWriter) list(fd protoreflect.FieldDescriptor, list protoreflect.List) {
	w.b = append(w.b, '[')
	for i := range list.Len() {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.value(fd, list.Get(i))
	}
	w.b = append(w.b, ']')
}

func (w *configWriter) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
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
		w.b = append(appendJSON(w.b, k), ':')
		w.value(fd.MapValue(), byText[k])
	}
	w.b = append(w.b, '}')
}

func (w *configWriter) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		w.message(v.Message())
	case protoreflect.StringKind:
		w.b = appendJSON(w.b, v.String())
	case protoreflect.BytesKind:
		w.b = append(base64.StdEncoding.AppendEncode(append(w.b, '"'), v.Bytes()), '"')
	case protoreflect.BoolKind:
		w.b = strconv.AppendBool(w.b, v.Bool())
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			w.b = appendJSON(w.b, string(e.Name()))
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
		w.b = strconv.AppendInt(w.b, v.Int(), 10)
	}
}
