//go:build onnxruntime && cgo

package onnxruntime

import (
	"maps"
	"slices"
	"strconv"

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
)

// tensorrtKeys are the accelerator parameters of tensorrt that the original knows, and
// what their values are. Those in tensorrtNames have other names in ONNX Runtime.
var tensorrtKeys = map[string]kind{
	"max_workspace_size_bytes": number, "trt_max_partition_iterations": number, "trt_min_subgraph_size": number,
	"int8_calibration_table_name": text, "int8_use_native_calibration_table": boolean, "trt_dla_enable": boolean,
	"trt_dla_core": number, "trt_engine_cache_enable": boolean, "trt_engine_cache_path": text,
	"trt_engine_cache_prefix": text, "trt_dump_subgraphs": boolean, "trt_force_sequential_engine_build": boolean,
	"trt_context_memory_sharing_enable": boolean, "trt_layer_norm_fp32_fallback": boolean,
	"trt_timing_cache_enable": boolean, "trt_timing_cache_path": text, "trt_force_timing_cache": boolean,
	"trt_detailed_build_log": boolean, "trt_build_heuristics_enable": boolean, "trt_sparsity_enable": boolean,
	"trt_builder_optimization_level": number, "trt_auxiliary_streams": number, "trt_tactic_sources": text,
	"trt_extra_plugin_lib_paths": text, "trt_profile_min_shapes": text, "trt_profile_max_shapes": text,
	"trt_profile_opt_shapes": text, "trt_cuda_graph_enable": boolean, "trt_dump_ep_context_model": boolean,
	"trt_ep_context_file_path": text, "trt_ep_context_embed_mode": number,
}

var tensorrtNames = map[string]string{
	"max_workspace_size_bytes":          "trt_max_workspace_size",
	"int8_calibration_table_name":       "trt_int8_calibration_table_name",
	"int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}

func newAccelerators(cfg *modelconfig.ModelConfig) (accelerators, error) {
	a := accelerators{cuda: map[string]string{}}
	chosen := cfg.GetOptimization().GetExecutionAccelerators()
	for _, acc := range chosen.GetGpuExecutionAccelerator() {
		var err error
		switch acc.GetName() {
		case "tensorrt":
			a.tensorrt, err = tensorrtOptions(acc.GetParameters())
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

func tensorrtOptions(params map[string]string) (map[string]string, error) {
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
	case boolean:
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

// cudaOptions passes all keys on by their names; ONNX Runtime refuses unknown ones.
func cudaOptions(params map[string]string, set map[string]string) error {
	for key, value := range params {
		k := text
		if key == "do_copy_in_default_stream" || key == "use_ep_level_unified_stream" {
			k = boolean
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
