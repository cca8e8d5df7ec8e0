//go:build onnxruntime && cgo

package onnxruntime

import (
	"maps"
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
		a, err := newAccelerators(parse(t, tc.config))
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
		`parameters { key: "cudnn_conv_algo_search" value { string_value: "3" } }`,
	} {
		if _, err := newAccelerators(parse(t, bad)); err == nil {
			t.Errorf("%s: accepted, want an error", bad)
		}
	}
	if p := provider(map[string]string{"b": "1", "device_id": "7", "a": "2"}, 3); len(p.Options) != 3 ||
		p.Options[0].Key != "a" || p.Options[1].Key != "b" || p.Options[2].Value != "3" {
		t.Errorf("provider options %v, want a, b and the instance's device", p.Options)
	}
}
