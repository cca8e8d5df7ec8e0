//go:build onnxruntime && cgo

package onnxruntime

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// use is what a session configuration entry does with files.
type use int

const (
	none       use = iota
	readFolder     // reads files in a folder
	readFile       // reads a file
	readBeside     // reads a file in the model file's folder, named behind a comma
	writes         // makes files
)

// sessionKeys are the session configuration entries that a model's parameters may set; none
// of them is in the way of threads, memory or logs, which have parameters of their own.
// Others, of which nobody knows here whether they name files, are left out.
// Source: onnxruntime_session_options_config_keys.h, and the keys in ONNX Runtime 1.31.
var sessionKeys = map[string]use{
	"session.allow_released_opsets_only":                              none,
	"session.disable_aot_function_inlining":                           none,
	"session.disable_cpu_ep_fallback":                                 none,
	"session.disable_double_qdq_remover":                              none,
	"session.disable_prepacking":                                      none,
	"session.disable_qdq_constant_folding":                            none,
	"session.disable_quant_qdq":                                       none,
	"session.dynamic_block_base":                                      none,
	"session.enable_dq_matmulnbits_fusion":                            none,
	"session.enable_quant_qdq_cleanup":                                none,
	"session.force_spinning_stop":                                     none,
	"session.function_expansion_byte_limit":                           none,
	"session.function_expansion_node_limit":                           none,
	"session.gqa_value_layout":                                        none,
	"session.graph_optimizations_loop_level":                          none,
	"session.inter_op.allow_spinning":                                 none,
	"session.intra_op.allow_spinning":                                 none,
	"session.intra_op_thread_affinities":                              none,
	"session.layer_assignment_settings":                               none,
	"session.load_model_format":                                       none,
	"session.max_shape_override":                                      none,
	"session.prepack.enable_parallel":                                 none,
	"session.qdq_matmulnbits_accuracy_level":                          none,
	"session.qdq_matmulnbits_block_size":                              none,
	"session.qdqisint8allowed":                                        none,
	"session.set_denormal_as_zero":                                    none,
	"session.strict_shape_type_inference":                             none,
	"session.use_device_allocator_for_initializers":                   none,
	"session.use_env_allocators":                                      none,
	"session.use_external_initializer_file_buffers_directly":          none,
	"session.use_memory_mapped_ort_model":                             none,
	"session.use_ort_model_bytes_directly":                            none,
	"session.use_ort_model_bytes_for_initializers":                    none,
	"session.x64quantprecision":                                       none,
	"session.model_external_initializers_file_folder_path":            readFolder,
	"session.moe_expert_counter_state_file":                           readFile,
	"session.node_partition_config_file":                              readFile, // made where it is not there
	"session.resource_cuda_partitioning_settings":                     readBeside,
	"session.collect_node_memory_stats_to_file":                       writes,
	"session.debug_layout_transformation":                             writes,
	"session.enable_profiling":                                        writes,
	"session.optimized_model_external_initializers_file_name":         writes,
	"session.optimized_model_filepath":                                writes,
	"session.save_external_prepacked_constant_initializers":           writes,
	"session.enable_saved_runtime_optimizations":                      writes,
	"session.optimized_model_external_initializers_min_size_in_bytes": writes,
}

// entries are the parameters that are session configuration entries by their names. Triton
// knows session.use_device_allocator_for_initializers alone, and leaves the others out.
func (p parameters) entries(f files, log *slog.Logger) ([]ort.Option, error) {
	var all []ort.Option
	for _, key := range slices.Sorted(maps.Keys(p.m)) {
		if !strings.HasPrefix(key, "session.") {
			continue
		}
		kind, known := sessionKeys[key]
		if !known {
			log.Warn("a session option that is not known has no effect", "parameter", clip(key))
			continue
		}
		given := p.m[key].GetStringValue()
		if kind == writes && (given == "" || given == "0") {
			continue
		}
		value, err := f.entry(key, given, kind)
		if err != nil {
			return nil, err
		}
		all = append(all, ort.Option{Key: key, Value: value})
	}
	return all, nil
}

// entry checks the value of a session configuration entry, and gives it as ONNX Runtime is
// told it.
func (f files) entry(key, value string, kind use) (string, error) {
	what := "parameter '" + key + "'"
	if strings.ContainsRune(value, 0) {
		return "", infer.Errorf(infer.InvalidArg, "%s: its value has a NUL", what)
	}
	switch kind {
	case readFolder:
		return f.folder(what, value)
	case readFile:
		return f.find(what, value, nil)
	case readBeside:
		_, name, _ := strings.Cut(value, ",")
		if name == "" {
			return value, nil
		}
		if _, info, ok := stat(f.version, name); !ok || !info.Mode().IsRegular() {
			return "", f.refuse(what, name, "file", nil)
		}
		return value, nil
	case writes:
		return "", infer.Errorf(infer.InvalidArg, "%s would write a file, which no model may", what)
	}
	return value, nil
}
