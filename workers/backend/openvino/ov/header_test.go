//go:build cgo

package ov

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What api.h says of OpenVINO is what the headers of its package say.
func TestHeader(t *testing.T) {
	dir := os.Getenv("SLUICE_ENGINES")
	if dir == "" {
		t.Skip("SLUICE_ENGINES is not set: no OpenVINO to compare with (make test installs it)")
	}
	var b strings.Builder
	b.WriteString("#include \"openvino/c/openvino.h\"\n#include \"api.h\"\n")
	for ours, theirs := range map[string]string{
		"SLO_BOOLEAN": "BOOLEAN", "SLO_BF16": "BF16", "SLO_F16": "F16", "SLO_F32": "F32", "SLO_F64": "F64", "SLO_I8": "I8", "SLO_I16": "I16",
		"SLO_I32": "I32", "SLO_I64": "I64", "SLO_U8": "U8", "SLO_U16": "U16", "SLO_U32": "U32", "SLO_U64": "U64", "SLO_STRING": "STRING",
		"SLO_CANCELLED": "INFER_CANCELLED", "0": "OK",
	} {
		b.WriteString("_Static_assert((int)" + ours + " == (int)" + theirs + ", \"" + theirs + "\");\n")
	}
	for ours, theirs := range map[string]string{
		"slo_version": "ov_version_t", "slo_dimension": "ov_dimension_t", "slo_partial": "ov_partial_shape_t", "slo_shape": "ov_shape_t",
	} {
		b.WriteString("_Static_assert(sizeof(" + ours + ") == sizeof(" + theirs + "), \"" + theirs + "\");\n")
	}
	for member, theirs := range map[string]string{
		"slo_version, build": "ov_version_t, buildNumber", "slo_dimension, max": "ov_dimension_t, max", "slo_partial, dims": "ov_partial_shape_t, dims",
		"slo_shape, dims": "ov_shape_t, dims",
	} {
		b.WriteString("_Static_assert(offsetof(" + member + ") == offsetof(" + theirs + "), \"" + theirs + "\");\n")
	}
	// Each function is declared.
	b.WriteString("#define DECLARED(result, name, parameters) (void)&ov_##name;\nvoid all(void);\nvoid all(void) { SLO_FUNCTIONS(DECLARED) }\n")
	file := filepath.Join(t.TempDir(), "header.c")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	out, err := exec.CommandContext(t.Context(), cc, "-std=c11", "-fsyntax-only", "-I.", "-I"+filepath.Join(dir, "openvino", "openvino", "include"), file).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
