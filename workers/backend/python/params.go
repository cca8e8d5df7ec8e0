package python

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
)

// paramsJSON is the JSON object of parameters; "" for none.
func paramsJSON(params infer.Params) string {
	if len(params) == 0 {
		return ""
	}
	b := []byte{'{'}
	for i, p := range params {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(configjson.AppendText(b, p.Name), ':')
		switch v := p.Value; v.Kind {
		case infer.KindBool:
			b = strconv.AppendBool(b, v.Bool)
		case infer.KindInt64:
			b = strconv.AppendInt(b, v.Int, 10)
		case infer.KindUint64:
			b = strconv.AppendUint(b, uint64(v.Int), 10)
		case infer.KindDouble:
			b = appendDouble(b, v.Double)
		default:
			b = configjson.AppendText(b, v.Str)
		}
	}
	return string(append(b, '}'))
}

// appendDouble writes a double so that Python reads one: with a point, and NaN by its name.
func appendDouble(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "Infinity"...)
	case math.IsInf(v, -1):
		return append(b, "-Infinity"...)
	}
	at := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	if !bytes.ContainsAny(b[at:], ".e") {
		b = append(b, ".0"...)
	}
	return b
}

// paramsOf reads the parameters of an answer: a JSON object of booleans, numbers and strings.
func paramsOf(text string) (infer.Params, error) {
	if text == "" || text == "{}" {
		return nil, nil
	}
	var params infer.Params
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, infer.Errorf(infer.Internal, "the model's parameters of a response are no JSON object")
	}
	for d.More() {
		name, err := d.Token()
		if err == nil {
			var value json.Token
			if value, err = d.Token(); err == nil {
				var v infer.Value
				if v, err = valueOf(value); err == nil {
					params = append(params, infer.Param{Name: name.(string), Value: v}) // a name is a string
				}
			}
		}
		if err != nil {
			return nil, infer.Errorf(infer.Internal, "the model's parameters of a response can't be read: %w", err)
		}
	}
	return params, nil
}

// valueOf is a parameter's value.
func valueOf(t json.Token) (infer.Value, error) {
	switch v := t.(type) {
	case bool:
		return infer.Value{Kind: infer.KindBool, Bool: v}, nil
	case string:
		return infer.Value{Kind: infer.KindString, Str: v}, nil
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return infer.Value{Kind: infer.KindInt64, Int: n}, nil
		}
		if n, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return infer.Value{Kind: infer.KindUint64, Int: int64(n)}, nil
		}
		f, err := v.Float64()
		return infer.Value{Kind: infer.KindDouble, Double: f}, err
	}
	return infer.Value{}, fmt.Errorf("a value is none of bool, number and string: %v", t)
}
