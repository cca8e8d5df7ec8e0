//go:build onnxruntime && cgo

package onnxruntime

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestAccelerators(t *testing.T) {
	const accelerators = `optimization { execution_accelerators { gpu_execution_accelerator { `
	tests := []struct {
		name, config   string
		tensorrt, cuda map[string]string
	}{
		{"none", "", nil, map[string]string{}},
		{"tensorrt alone", accelerators + `name: "tensorrt" } } }`, map[string]string{}, map[string]string{}},
		{"tensorrt keys", accelerators + `name: "tensorrt"
			parameters { key: "precision_mode" value: "FP16" }
			parameters { key: "max_workspace_size_bytes" value: "1073741824" }
			parameters { key: "trt_engine_cache_enable" value: "true" }
			parameters { key: "int8_use_native_calibration_table" value: "False" }
			parameters { key: "trt_profile_min_shapes" value: "x:1x3" } } } }`,
			map[string]string{"trt_fp16_enable": "1", "trt_max_workspace_size": "1073741824", "trt_engine_cache_enable": "1",
				"trt_int8_use_native_calibration_table": "0", "trt_profile_min_shapes": "x:1x3"}, map[string]string{}},
		{"cuda keys", accelerators + `name: "cuda"
			parameters { key: "cudnn_conv_use_max_workspace" value: "0" }
			parameters { key: "do_copy_in_default_stream" value: "yes" } } } }`,
			nil, map[string]string{"cudnn_conv_use_max_workspace": "0", "do_copy_in_default_stream": "1"}},
		{"cuda by parameters", `parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }
			parameters { key: "arena_extend_strategy" value { string_value: "1" } }
			parameters { key: "gpu_mem_limit" value { string_value: "4294967296" } }`,
			nil, map[string]string{"cudnn_conv_algo_search": "HEURISTIC", "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": "4294967296"}},
	}
	for _, tc := range tests {
		a, err := newAccelerators(parse(t, tc.config), files{dir: t.TempDir()})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if !maps.Equal(a.tensorrt, tc.tensorrt) || (a.tensorrt == nil) != (tc.tensorrt == nil) || !maps.Equal(a.cuda, tc.cuda) {
			t.Errorf("%s: tensorrt %v, cuda %v; want %v, %v", tc.name, a.tensorrt, a.cuda, tc.tensorrt, tc.cuda)
		}
	}
	for _, bad := range []string{
		accelerators + `name: "tensorrt" parameters { key: "trt_dla_core" value: "x" } } } }`,
		accelerators + `name: "tensorrt" parameters { key: "trt_dla_enable" value: "2" } } } }`,
		accelerators + `name: "cuda" parameters { key: "do_copy_in_default_stream" value: "perhaps" } } } }`,
		accelerators + `name: "cuda" parameters { key: "user_compute_stream" value: "4096" } } } }`,
		accelerators + `name: "cuda" parameters { key: "gpu_external_alloc" value: "4096" } } } }`,
		`parameters { key: "cudnn_conv_algo_search" value { string_value: "3" } }`,
	} {
		if _, err := newAccelerators(parse(t, bad), files{dir: t.TempDir()}); err == nil {
			t.Errorf("%s: accepted, want an error", bad)
		}
	}
	if p := provider(map[string]string{"b": "1", "device_id": "7", "a": "2"}, 3); len(p.Options) != 3 ||
		p.Options[0].Key != "a" || p.Options[1].Key != "b" || p.Options[2].Value != "3" {
		t.Errorf("provider options %v, want a, b and the instance's device", p.Options)
	}
}

// TestTensorRTFiles: what the TensorRT execution provider reads, runs and makes lies in the
// model's folder, or in those that the settings name.
func TestTensorRTFiles(t *testing.T) {
	dir, cache, ops := t.TempDir(), t.TempDir(), t.TempDir()
	lay(t, dir, map[string]string{"a.so": "", "table": "", "file": ""})
	lay(t, ops, map[string]string{"b.so": ""})
	if err := os.Symlink("/tmp", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	f := files{dir: dir, caches: []string{cache}, libraries: []string{ops}}
	for _, row := range []struct{ key, value, want string }{
		{"trt_engine_cache_path", "cache", dir + "/cache"},
		{"trt_engine_cache_path", cache, cache},
		{"trt_engine_cache_path", cache + "/new/deep", cache + "/new/deep"},
		{"trt_engine_cache_path", cache + "/../other", ""},
		{"trt_engine_cache_path", "/tmp/engines", ""},
		{"trt_engine_cache_path", "../engines", ""},
		{"trt_engine_cache_path", "link/engines", ""},
		{"trt_engine_cache_path", "file/engines/deep", dir + "/file/engines/deep"}, // TensorRT says what is wrong
		{"trt_engine_cache_path", "", ""},
		{"trt_timing_cache_path", "/etc/x", ""},
		{"trt_ep_context_file_path", "/etc/x", ""},
		{"trt_engine_cache_prefix", "p", "p"},
		{"trt_engine_cache_prefix", "../p", ""},
		{"trt_extra_plugin_lib_paths", "a.so;" + ops + "/b.so", dir + "/a.so;" + ops + "/b.so"},
		{"trt_extra_plugin_lib_paths", "a.so;/tmp/b.so", ""},
		{"trt_extra_plugin_lib_paths", "a.so;", ""},
		{"int8_calibration_table_name", "table", dir + "/table"},
		{"int8_calibration_table_name", "/etc/hostname", ""},
		{"trt_dump_subgraphs", "true", ""},
		{"trt_dump_subgraphs", "false", "0"},
		{"trt_dump_ep_context_model", "1", ""},
		{"trt_tactic_sources", "x\x00y", ""},
	} {
		set, err := tensorrtOptions(map[string]string{row.key: row.value}, f)
		name := row.key
		if renamed, ok := tensorrtNames[name]; ok {
			name = renamed
		}
		if set[name] != row.want || (err != nil) != (row.want == "" && row.value != "") {
			t.Errorf("%s = %q: %q, %v, want %q", row.key, row.value, set[name], err, row.want)
		}
	}
	set, err := tensorrtOptions(map[string]string{"int8_calibration_table_name": "table2",
		"trt_engine_cache_path": cache}, f)
	if err != nil || set["trt_int8_calibration_table_name"] != "table2" {
		t.Errorf("a table beside the engines: %v, %v", set, err)
	}
}
