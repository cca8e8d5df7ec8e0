package modelconfig

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// convert makes a value of the field's type. why is a hint for the message.
func convert(fd protoreflect.FieldDescriptor, t token, negative bool) (v protoreflect.Value, ok bool, why string) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return v, false, fmt.Sprintf("; write it in quotes: %q", t.str)
	case protoreflect.BoolKind:
		switch {
		case negative:
		case slices.Contains([]string{"true", "True", "t", "1"}, t.str):
			return protoreflect.ValueOfBool(true), true, ""
		case slices.Contains([]string{"false", "False", "f", "0"}, t.str):
			return protoreflect.ValueOfBool(false), true, ""
		}
		return v, false, "; write true or false"
	case protoreflect.EnumKind:
		return enum(fd.Enum(), t, negative)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		f, ok := float(t, negative)
		if fd.Kind() == protoreflect.FloatKind {
			return protoreflect.ValueOfFloat32(float32(f)), ok, ""
		}
		return protoreflect.ValueOfFloat64(f), ok, ""
	}
	return integer(fd, t, negative)
}

func integer(fd protoreflect.FieldDescriptor, t token, negative bool) (v protoreflect.Value, ok bool, why string) {
	if t.kind != number {
		return v, false, ""
	}
	u, err := strconv.ParseUint(t.str, 0, 64)
	if err != nil || strings.ContainsAny(t.str, "_oObB") && !strings.HasPrefix(strings.ToLower(t.str), "0x") {
		return v, false, ""
	}
	limit := map[protoreflect.Kind]uint64{protoreflect.Int32Kind: math.MaxInt32, protoreflect.Int64Kind: math.MaxInt64,
		protoreflect.Uint32Kind: math.MaxUint32, protoreflect.Uint64Kind: math.MaxUint64}[fd.Kind()]
	signed := fd.Kind() == protoreflect.Int32Kind || fd.Kind() == protoreflect.Int64Kind
	switch {
	case negative && !signed && u != 0:
		return v, false, ""
	case negative && signed && u == limit+1:
	case u > limit:
		return v, false, ""
	}
	n := int64(u)
	if negative {
		n = -n
	}
	switch fd.Kind() {
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n)), true, ""
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n), true, ""
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(u)), true, ""
	}
	return protoreflect.ValueOfUint64(u), true, ""
}

func float(t token, negative bool) (float64, bool) {
	s := strings.ToLower(t.str)
	switch s {
	case "infinity":
		s = "inf"
	case "inf", "nan":
	default:
		if t.kind != number || strings.Contains(s, "_") {
			return 0, false
		}
		if !strings.HasPrefix(s, "0x") {
			s = strings.TrimSuffix(s, "f")
		}
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	if negative {
		f = -f
	}
	return f, true
}

func enum(ed protoreflect.EnumDescriptor, t token, negative bool) (v protoreflect.Value, ok bool, why string) {
	var names []string
	for i := range ed.Values().Len() {
		names = append(names, string(ed.Values().Get(i).Name()))
	}
	if t.kind == ident && !negative {
		if value := ed.Values().ByName(protoreflect.Name(t.str)); value != nil {
			return protoreflect.ValueOfEnum(value.Number()), true, ""
		}
		if near := suggestion(t.str, names); near != "" {
			return v, false, near
		}
	} else if n, err := strconv.ParseInt(t.str, 0, 32); err == nil && !negative {
		if value := ed.Values().ByNumber(protoreflect.EnumNumber(n)); value != nil {
			return protoreflect.ValueOfEnum(value.Number()), true, ""
		}
	}
	return v, false, "; it is one of " + strings.Join(names, ", ")
}

func kindName(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.StringKind:
		return "a string"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "a " + string(fd.Enum().Name()) + " name"
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "a number"
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		return "a whole number of 0 or more (" + fd.Kind().String() + ")"
	}
	return "a whole number (" + fd.Kind().String() + ")"
}

func fieldNames(md protoreflect.MessageDescriptor) []string {
	var names []string
	for i := range md.Fields().Len() {
		names = append(names, string(md.Fields().Get(i).Name()))
	}
	sort.Strings(names)
	return names
}
