package httpapi

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/proto/inference"
)

// printer writes messages as the original's control answers: proto names in the order
// of their declaration, fields without presence always, 64-bit integers as numbers,
// enums by name, map entries in the order of their keys.
type printer struct{ b []byte }

// appendMessage appends m as JSON.
func appendMessage(b []byte, m proto.Message) []byte {
	p := printer{b: b}
	p.message(m.ProtoReflect())
	return p.b
}

func (p *printer) message(m protoreflect.Message) {
	p.b = append(p.b, '{')
	start := len(p.b)
	fields := m.Descriptor().Fields()
	for _, late := range [...]bool{false, true} {
		for i := range fields.Len() {
			fd := fields.Get(i)
			if scalarChoice(fd) != late || fd.HasPresence() && !m.Has(fd) {
				continue
			}
			p.comma(start)
			p.b = append(json.AppendString(p.b, string(fd.Name())), ':')
			p.field(fd, m.Get(fd))
		}
	}
	p.b = append(p.b, '}')
}

// scalarChoice is a scalar of a oneof; the original prints those behind all others.
func scalarChoice(fd protoreflect.FieldDescriptor) bool {
	return fd.ContainingOneof() != nil && fd.Message() == nil
}

func (p *printer) comma(start int) {
	if len(p.b) > start {
		p.b = append(p.b, ',')
	}
}

func (p *printer) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case fd.IsMap():
		p.mapping(fd, v.Map())
	case fd.IsList():
		list := v.List()
		p.b = append(p.b, '[')
		for i := range list.Len() {
			if i > 0 {
				p.b = append(p.b, ',')
			}
			p.value(fd, list.Get(i))
		}
		p.b = append(p.b, ']')
	default:
		p.value(fd, v)
	}
}

func (p *printer) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int {
		switch fd.MapKey().Kind() {
		case protoreflect.StringKind, protoreflect.BoolKind:
			return cmp.Compare(a.String(), b.String())
		case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
			return cmp.Compare(a.Uint(), b.Uint())
		}
		return cmp.Compare(a.Int(), b.Int())
	})
	p.b = append(p.b, '{')
	for i, k := range keys {
		if i > 0 {
			p.b = append(p.b, ',')
		}
		p.b = append(json.AppendString(p.b, k.String()), ':')
		p.value(fd.MapValue(), m.Get(k))
	}
	p.b = append(p.b, '}')
}

func (p *printer) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		p.message(v.Message())
	case protoreflect.StringKind:
		p.b = json.AppendString(p.b, v.String())
	case protoreflect.BytesKind:
		p.b = append(base64.StdEncoding.AppendEncode(append(p.b, '"'), v.Bytes()), '"')
	case protoreflect.BoolKind:
		p.b = strconv.AppendBool(p.b, v.Bool())
	case protoreflect.EnumKind:
		if e := fd.Enum().Values().ByNumber(v.Enum()); e != nil {
			p.b = json.AppendString(p.b, string(e.Name()))
		} else {
			p.b = strconv.AppendInt(p.b, int64(v.Enum()), 10)
		}
	case protoreflect.FloatKind:
		p.float(v.Float(), 32)
	case protoreflect.DoubleKind:
		p.float(v.Float(), 64)
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		p.b = strconv.AppendUint(p.b, v.Uint(), 10)
	default:
		p.b = strconv.AppendInt(p.b, v.Int(), 10)
	}
}

// float writes whole numbers without a point here, as the original does in configs.
func (p *printer) float(f float64, bits int) {
	if i := int64(f); float64(i) == f && i > -1<<53 && i < 1<<53 {
		p.b = strconv.AppendInt(p.b, i, 10)
		return
	}
	p.b = json.AppendFloat(p.b, f, bits)
}

// statisticsOrder is the original's, which differs from the message's.
var statisticsOrder = [...]protoreflect.Name{"name", "version", "last_inference", "inference_count", "execution_count",
	"inference_stats", "response_stats", "batch_stats", "memory_usage"}

// appendStatistics appends the answer of the statistics extension.
func appendStatistics(b []byte, m *inference.ModelStatisticsResponse) []byte {
	p := printer{b: append(b, `{"model_stats":[`...)}
	for i, s := range m.GetModelStats() {
		if i > 0 {
			p.b = append(p.b, ',')
		}
		p.b = append(p.b, '{')
		start := len(p.b)
		r := s.ProtoReflect()
		for _, name := range statisticsOrder {
			fd := r.Descriptor().Fields().ByName(name)
			if fd.HasPresence() && !r.Has(fd) {
				continue
			}
			p.comma(start)
			p.b = append(json.AppendString(p.b, string(name)), ':')
			p.field(fd, r.Get(fd))
		}
		p.b = append(p.b, '}')
	}
	return append(p.b, ']', '}')
}

// appendIndex appends the answer of the repository index: an array whose entries leave
// out what is empty.
func appendIndex(b []byte, m *inference.RepositoryIndexResponse) []byte {
	b = append(b, '[')
	for i, e := range m.GetModels() {
		if i > 0 {
			b = append(b, ',')
		}
		b = json.AppendString(append(b, `{"name":`...), e.GetName())
		for _, f := range [...]Field{{"version", e.GetVersion()}, {"state", e.GetState()}, {"reason", e.GetReason()}} {
			if f.Value != "" {
				b = append(json.AppendString(append(b, ','), f.Name), ':')
				b = json.AppendString(b, f.Value)
			}
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// logOrder is the order of the log settings in an answer.
var logOrder = [...]string{"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"}

// appendLogSettings appends the answer of the logging extension.
func appendLogSettings(b []byte, m *inference.LogSettingsResponse) []byte {
	b = append(b, '{')
	start := len(b)
	for _, name := range logOrder {
		v, ok := m.GetSettings()[name]
		if !ok {
			continue
		}
		if len(b) > start {
			b = append(b, ',')
		}
		b = append(json.AppendString(b, name), ':')
		switch c := v.GetParameterChoice().(type) {
		case *inference.LogSettingsResponse_SettingValue_BoolParam:
			b = strconv.AppendBool(b, c.BoolParam)
		case *inference.LogSettingsResponse_SettingValue_Uint32Param:
			b = strconv.AppendUint(b, uint64(c.Uint32Param), 10)
		default:
			b = json.AppendString(b, v.GetStringParam())
		}
	}
	return append(b, '}')
}
