package modelconfig

import (
	"strings"
)

// Nearest finds the candidate that name was probably meant to be: one that differs in
// case, underscores or dashes only, or by few letters for its length. "" is none.
func Nearest(name string, candidates []string) string {
	plain := fold(name)
	best, least := "", 1+max(1, len(plain)/4)
	for _, c := range candidates {
		f := fold(c)
		if f == plain {
			return c
		}
		if d := distance(plain, f, least); d < least {
			best, least = c, d
		}
	}
	if best != "" {
		return best
	}
	// A plural, or a longer or shorter form: "inputs", "gpu".
	for _, c := range candidates {
		if f := fold(c); len(f) > 2 && len(plain) > 2 && (strings.HasPrefix(f, plain) || strings.HasPrefix(plain, f)) {
			return c
		}
	}
	return ""
}

func fold(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

// distance is the number of letters to insert, delete, replace or swap between a and
// b, or limit where it is that or more.
func distance(a, b string, limit int) int {
	const longest = 128
	if len(a) > longest || len(b) > longest || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	var rows [3][longest + 1]int
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := range a {
		prev2, prev, cur := &rows[(i+2)%3], &rows[i%3], &rows[(i+1)%3]
		cur[0] = i + 1
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			cur[j+1] = min(prev[j+1]+1, cur[j]+1, prev[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cur[j+1] = min(cur[j+1], prev2[j-1]+1)
			}
		}
	}
	return min(limit, rows[len(a)%3][len(b)])
}

// foreign maps names that other tools use to ours.
var foreign = map[string]string{
	"type_float": "TYPE_FP32", "type_float32": "TYPE_FP32", "type_float16": "TYPE_FP16", "type_half": "TYPE_FP16",
	"type_float64": "TYPE_FP64", "type_double": "TYPE_FP64", "type_bfloat16": "TYPE_BF16", "type_int": "TYPE_INT32",
	"type_long": "TYPE_INT64", "type_bytes": "TYPE_STRING", "bytes": "TYPE_STRING", "string": "TYPE_STRING",
	"float": "TYPE_FP32", "float32": "TYPE_FP32", "kind_cuda": "KIND_GPU", "cuda": "KIND_GPU", "type_boolean": "TYPE_BOOL",
	"batch_size": "max_batch_size", "type": "data_type", "datatype": "data_type", "dtype": "data_type", "shape": "dims",
	"dim": "dims", "model_name": "name", "instances": "instance_group", "labels": "label_filename",
}

// suggestion is "; did you mean …?" or nothing.
func suggestion(name string, candidates []string) string {
	s := Nearest(name, candidates)
	if f, ok := foreign[strings.ToLower(name)]; ok {
		for _, c := range candidates {
			if c == f {
				s = f
			}
		}
	}
	if s == "" {
		return ""
	}
	return `; did you mean "` + s + `"?`
}
