//go:build onnxruntime && cgo

package onnxruntime

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// accelerators are the execution providers of a model's GPU instances.
// Source: optimization.execution_accelerators, proto/modelconfig/model_config.proto,
// with the names and values of the original's onnxruntime_backend.
type accelerators struct {
	tensorrt map[string]string // by ONNX Runtime's names; nil: not asked for
	cuda     map[string]string
}

type kind int

const (
	text kind = iota
	number
	boolean
	plugins  // paths of libraries, with semicolons between them
	path     // of what TensorRT makes, and reads again
	plain    // a part of a file's name
	dump     // a boolean that makes files wherever the worker runs
	tabulate // the name of a table in the folder of trt_engine_cache_path
)

// tensorrtKeys are the accelerator parameters of tensorrt that the original knows, and
// what their values are. Those in tensorrtNames have other names in ONNX Runtime.
var tensorrtKeys = map[string]kind{
	"max_workspace_size_bytes": number, "trt_max_partition_iterations": number, "trt_min_subgraph_size": number,
	"int8_calibration_table_name": tabulate, "int8_use_native_calibration_table": boolean, "trt_dla_enable": boolean,
	"trt_dla_core": number, "trt_engine_cache_enable": boolean, "trt_engine_cache_path": path,
	"trt_engine_cache_prefix": plain, "trt_dump_subgraphs": dump, "trt_force_sequential_engine_build": boolean,
	"trt_context_memory_sharing_enable": boolean, "trt_layer_norm_fp32_fallback": boolean,
	"trt_timing_cache_enable": boolean, "trt_timing_cache_path": path, "trt_force_timing_cache": boolean,
	"trt_detailed_build_log": boolean, "trt_build_heuristics_enable": boolean, "trt_sparsity_enable": boolean,
	"trt_builder_optimization_level": number, "trt_auxiliary_streams": number, "trt_tactic_sources": text,
	"trt_extra_plugin_lib_paths": plugins, "trt_profile_min_shapes": text, "trt_profile_max_shapes": text,
	"trt_profile_opt_shapes": text, "trt_cuda_graph_enable": boolean, "trt_dump_ep_context_model": dump,
	"trt_ep_context_file_path": path, "trt_ep_context_embed_mode": number,
}

var tensorrtNames = map[string]string{
	"max_workspace_size_bytes":          "trt_max_workspace_size",
	"int8_calibration_table_name":       "trt_int8_calibration_table_name",
	"int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}

func newAccelerators(cfg *modelconfig.ModelConfig, f files) (accelerators, error) {
	a := accelerators{cuda: map[string]string{}}
	chosen := cfg.GetOptimization().GetExecutionAccelerators()
	for _, acc := range chosen.GetGpuExecutionAccelerator() {
		var err error
		switch acc.GetName() {
		case "tensorrt":
			a.tensorrt, err = tensorrtOptions(acc.GetParameters(), f)
		case "cuda":
			err = cudaOptions(acc.GetParameters(), a.cuda)
		default:
			err = unknownAccelerator(acc.GetName())
		}
		if err != nil {
			return a, err
		}
	}
	for _, acc := range chosen.GetCpuExecutionAccelerator() {
		return a, unknownAccelerator(acc.GetName())
	}
	return a, cudaParameters(parameters{cfg.GetParameters()}, a.cuda)
}

func unknownAccelerator(name string) error {
	if name == "openvino" {
		return infer.Errorf(infer.Unsupported,
			"Execution Accelerator 'openvino' is not supported: the ONNX Runtime in use is built without it")
	}
	return infer.Errorf(infer.InvalidArg, "unknown Execution Accelerator '%s' is requested", name)
}

func tensorrtOptions(params map[string]string, f files) (map[string]string, error) {
	set := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(params)) {
		value := params[key]
		if key == "precision_mode" {
			if err := precision(value, set); err != nil {
				return nil, err
			}
			continue
		}
		k, known := tensorrtKeys[key]
		if !known {
			return nil, infer.Errorf(infer.InvalidArg, "unknown parameter '%s' is provided for TensorRT Execution Accelerator", key)
		}
		value, err := checkValue(k, value)
		if err != nil {
			return nil, infer.Errorf(infer.InvalidArg, "parameter '%s' of TensorRT Execution Accelerator: %w", key, err)
		}
		if value, err = f.tensorrt(key, value, params["trt_engine_cache_path"] != ""); err != nil {
			return nil, err
		}
		if name, ok := tensorrtNames[key]; ok {
			key = name
		}
		if value != "" {
			set[key] = value
		}
	}
	return set, nil
}

func precision(value string, set map[string]string) error {
	switch value {
	case "FP32":
	case "FP16":
		set["trt_fp16_enable"] = "1"
	case "BF16":
		set["trt_bf16_enable"] = "1"
	case "INT8":
		set["trt_int8_enable"] = "1"
	default:
		return infer.Errorf(infer.InvalidArg, "unsupported precision mode '%s' is requested", value)
	}
	return nil
}

// checkValue gives the value as ONNX Runtime reads it: booleans are 1 and 0 there.
func checkValue(k kind, value string) (string, error) {
	switch k {
	case number:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			return "", infer.Errorf(infer.InvalidArg, "failed to convert '%s' to integer", value)
		}
	case boolean, dump:
		b, err := parseBool(value)
		if err != nil {
			return "", err
		}
		if b {
			return "1", nil
		}
		return "0", nil
	}
	return value, nil
}

// tensorrt checks what a parameter says of files, and gives it as ONNX Runtime is told it.
// cached: there is a trt_engine_cache_path.
func (f files) tensorrt(key, value string, cached bool) (string, error) {
	what := "parameter '" + key + "' of TensorRT Execution Accelerator"
	kind := tensorrtKeys[key]
	switch {
	case strings.ContainsRune(value, 0):
		return "", infer.Errorf(infer.InvalidArg, "%s: its value has a NUL", what)
	case value == "":
		return "", nil
	case kind == plugins:
		var paths []string
		for name := range strings.SplitSeq(value, ";") {
			path, err := f.library(what, name)
			if err != nil {
				return "", err
			}
			paths = append(paths, path)
		}
		return strings.Join(paths, ";"), nil
	case kind == path:
		return f.cache(what, value)
	case kind == plain && (strings.Contains(value, "/") || value == ".."):
		return "", infer.Errorf(infer.InvalidArg, "%s: '%s' leads to another folder", what, clip(value))
	case kind == tabulate && (!cached || strings.Contains(value, "/") || value == ".."):
		return f.find(what, value, f.caches)
	case kind == dump && value == "1":
		return "", infer.Errorf(infer.InvalidArg, "%s would write files where the worker runs, which no model may", what)
	}
	return value, nil
}

// cudaKeys are the options of ONNX Runtime's CUDA execution provider that a model may set.
// The others are addresses of memory and of functions of the process.
// Source: OrtCUDAProviderOptionsV2, cuda_execution_provider_info.cc.
var cudaKeys = map[string]kind{
	"arena_extend_strategy": text, "cudnn_conv1d_pad_to_nc1d": text, "cudnn_conv_algo_search": text,
	"cudnn_conv_use_max_workspace": text, "device_id": text, "do_copy_in_default_stream": boolean,
	"enable_cuda_graph": text, "enable_skip_layer_norm_strict_mode": text, "fuse_conv_bias": text,
	"gpu_mem_limit": text, "prefer_nhwc": text, "sdpa_kernel": text, "tunable_op_enable": text,
	"tunable_op_max_tuning_duration_ms": text, "tunable_op_tuning_enable": text,
	"use_ep_level_unified_stream": boolean, "use_tf32": text,
}

// cudaOptions passes the keys on by their names.
func cudaOptions(params map[string]string, set map[string]string) error {
	for key, value := range params {
		k, known := cudaKeys[key]
		if !known {
			return infer.Errorf(infer.InvalidArg, "unknown parameter '%s' is provided for CUDA Execution Accelerator", clip(key))
		}
		value, err := checkValue(k, value)
		if err != nil {
			return infer.Errorf(infer.InvalidArg, "parameter '%s' of CUDA Execution Accelerator: %w", key, err)
		}
		if value != "" {
			set[key] = value
		}
	}
	return nil
}

// cudaParameters reads what older configurations say in the model's parameters.
func cudaParameters(p parameters, set map[string]string) error {
	choices := []struct {
		key   string
		names []string
	}{
		{"cudnn_conv_algo_search", []string{"EXHAUSTIVE", "HEURISTIC", "DEFAULT"}},
		{"arena_extend_strategy", []string{"kNextPowerOfTwo", "kSameAsRequested"}},
	}
	for _, c := range choices {
		v, ok := p.get(c.key)
		if !ok {
			continue
		}
		i, err := strconv.Atoi(v)
		if err != nil || i < 0 || i >= len(c.names) {
			return infer.Errorf(infer.InvalidArg, "unsupported %s value '%s' is requested", c.key, v)
		}
		set[c.key] = c.names[i]
	}
	for _, key := range []string{"gpu_mem_limit", "do_copy_in_default_stream"} {
		if v, ok := p.get(key); ok && v != "" {
			set[key] = v
		}
	}
	return nil
}

// provider makes the options of one device, sorted by key.
func provider(set map[string]string, device int) *ort.Provider {
	p := &ort.Provider{}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if key != "device_id" {
			p.Options = append(p.Options, ort.Option{Key: key, Value: set[key]})
		}
	}
	p.Options = append(p.Options, ort.Option{Key: "device_id", Value: strconv.Itoa(device)})
	return p
}
