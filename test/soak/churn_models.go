package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// width is the number of elements of a row of the models that are reloaded.
const width = 16

// churned are the models that are reloaded, unloaded and used at the same time: two that
// add a number which each load changes, the ensemble of both, one with sequences, and a
// decoupled one.
func churned() map[string]string {
	io := fmt.Sprintf("input { name: \"INPUT0\" data_type: TYPE_INT32 dims: %d }\noutput { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: %d }\n", width, width)
	adder := "backend: \"onnxruntime\"\nmax_batch_size: 4\n" + io + "instance_group { count: 1 kind: KIND_CPU }\nresponse_cache { enable: true }\n"
	step := func(name, in, out string) string {
		return fmt.Sprintf("step { model_name: %q model_version: -1 input_map { key: \"INPUT0\" value: %q } output_map { key: \"OUTPUT0\" value: %q } }\n", name, in, out)
	}
	base := models()
	return map[string]string{
		"low":   adder,
		"high":  adder,
		"chain": "platform: \"ensemble\"\nmax_batch_size: 4\n" + io + "response_cache { enable: true }\nensemble_scheduling {\n" + step("low", "INPUT0", "middle") + step("high", "middle", "OUTPUT0") + "}\n",
		"tally": strings.Replace(base["sum"], "60000000", "2000000", 1), // sequences are left
		"burst": base["repeat"],
	}
}

// adderConfig is the config of a load call for a model that adds a number, in a variant
// by chance. An identity one adds 0, whatever its files are.
func adderConfig(name string, identity bool, rng *rand.Rand) string {
	tensor := func(name string) []any {
		return []any{map[string]any{"name": name, "data_type": "TYPE_INT32", "dims": []int{width}}}
	}
	c := map[string]any{"name": name, "backend": "onnxruntime", "max_batch_size": 4, "input": tensor("INPUT0"), "output": tensor("OUTPUT0"),
		"instance_group": []any{map[string]any{"count": 1 + rng.IntN(2), "kind": "KIND_CPU"}}, "version_policy": map[string]any{"all": map[string]any{}}}
	if identity {
		c["backend"] = "identity"
		c["parameters"] = map[string]any{"execute_delay_ms": map[string]any{"string_value": fmt.Sprint(rng.IntN(15))}}
	}
	if rng.IntN(4) > 0 {
		c["response_cache"] = map[string]any{"enable": true}
	}
	if rng.IntN(2) == 0 {
		c["dynamic_batching"] = map[string]any{"max_queue_delay_microseconds": rng.IntN(2000)}
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // there is nothing in it that JSON lacks
	}
	return string(text)
}

// adderFile is an ONNX model whose OUTPUT0 is INPUT0 + k.
// Source: ModelProto and its parts, onnx.proto of ONNX 1.17 (IR version 8, operator set 17).
func adderFile(k int32) []byte {
	const int32Type = 6 // TensorProto.INT32
	message := func(b []byte, field protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), m)
	}
	text := func(b []byte, field protowire.Number, s string) []byte { return message(b, field, []byte(s)) }
	number := func(b []byte, field protowire.Number, n uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
	}
	value := func(name string) []byte {
		shape := message(message(nil, 1, text(nil, 2, "batch")), 1, number(nil, 1, width))
		kind := message(nil, 1, message(number(nil, 1, int32Type), 2, shape))
		return message(text(nil, 1, name), 2, kind)
	}
	constant := message(text(number(number(nil, 1, 1), 2, int32Type), 8, "K"), 9, binary.LittleEndian.AppendUint32(nil, uint32(k)))
	node := text(text(text(text(nil, 1, "INPUT0"), 1, "K"), 2, "OUTPUT0"), 4, "Add")
	graph := message(message(message(text(message(nil, 1, node), 2, "g"), 5, constant), 11, value("INPUT0")), 12, value("OUTPUT0"))
	return message(message(number(nil, 1, 8), 7, graph), 8, number(text(nil, 1, ""), 2, 17))
}
