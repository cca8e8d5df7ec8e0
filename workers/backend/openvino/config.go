package openvino

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/openvino/ov"
)

// settings are the parameters of a model.
type settings struct {
	properties []ov.Property // of the compiled model
	reshape    bool          // inputs have the config's dims in place of the file's
	unused     []string      // what was given and does nothing, as sentences
}

// newSettings reads the parameters. Source: README of Triton's openvino_backend, and of its tensorflow_backend.
func newSettings(spec backend.Spec, k *kind) (*settings, error) {
	p := parameters{spec.Config.GetParameters()}
	s := &settings{}
	var err error
	if k == &tensorflow {
		err = s.tensorflow(p, spec.Instances)
	} else {
		err = s.native(p, spec.Instances)
	}
	slices.Sort(s.unused)
	return s, err
}

type parameters struct {
	m map[string]*modelconfig.ModelParameter
}

func (p parameters) get(key string) (string, bool) {
	v, ok := p.m[key]
	return strings.TrimSpace(v.GetStringValue()), ok
}

// threads says how many an instance computes with, where a config does not say otherwise.
const threads = 1

func (s *settings) native(p parameters, instances int) error {
	own := map[string]string{"INFERENCE_NUM_THREADS": strconv.Itoa(threads * max(1, instances)), "NUM_STREAMS": strconv.Itoa(max(1, instances))}
	if hint, ok := p.get("PERFORMANCE_HINT"); ok {
		if !slices.Contains([]string{"LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"}, hint) {
			return fmt.Errorf("parameter 'PERFORMANCE_HINT' is '%s', and not LATENCY, THROUGHPUT or CUMULATIVE_THROUGHPUT", hint)
		}
		own = map[string]string{"PERFORMANCE_HINT": hint} // it chooses threads and streams
	}
	for _, key := range []string{"INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"} {
		v, ok := p.get(key)
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(v); err != nil || n < 1 || n > 1024 {
			return fmt.Errorf("parameter '%s': '%s' is no number of threads (1 to 1024)", key, v)
		}
		if key == "COMPILATION_NUM_THREADS" {
			s.unused = append(s.unused, "parameter 'COMPILATION_NUM_THREADS' is not used: OpenVINO has it for other devices than the CPU")
			continue
		}
		own[key] = v
	}
	if v, ok := p.get("NUM_STREAMS"); ok {
		if n, err := strconv.Atoi(v); v != "AUTO" && v != "NUMA" && (err != nil || n < 1 || n > 1024) {
			return fmt.Errorf("parameter 'NUM_STREAMS': '%s' is neither AUTO, NUMA nor a number (1 to 1024)", v)
		}
		own["NUM_STREAMS"] = v
	}
	if v, ok := p.get("TARGET_DEVICE"); ok && v != "CPU" {
		return fmt.Errorf("parameter 'TARGET_DEVICE' is '%s': models are computed on the CPU here", v)
	}
	if _, ok := p.get("CPU_EXTENSION_PATH"); ok {
		return fmt.Errorf("parameter 'CPU_EXTENSION_PATH' is not supported: a model may not bring code")
	}
	for key, to := range map[string]func(bool){
		"HINT_BF16": func(on bool) {
			if own["INFERENCE_PRECISION_HINT"] = "f32"; on {
				own["INFERENCE_PRECISION_HINT"] = "bf16"
			}
		},
		"RESHAPE_IO_LAYERS": func(on bool) { s.reshape = on },
		"SKIP_OV_DYNAMIC_BATCHSIZE": func(bool) {
			s.unused = append(s.unused, "parameter 'SKIP_OV_DYNAMIC_BATCHSIZE' is not used: batches have any size up to max_batch_size")
		},
		"ENABLE_BATCH_PADDING": func(bool) {
			s.unused = append(s.unused, "parameter 'ENABLE_BATCH_PADDING' is not used: batches have any size up to max_batch_size, and need no padding")
		},
	} {
		v, ok := p.get(key)
		switch {
		case !ok:
		case v == "YES" || v == "NO":
			to(v == "YES")
		default:
			return fmt.Errorf("parameter '%s' is '%s', and neither YES nor NO", key, v)
		}
	}
	s.set(own)
	return nil
}

// refusedTF are parameters of Triton's TensorFlow backend that OpenVINO has nothing for.
var refusedTF = []string{"TF_INIT_OPS_FILE"}

func (s *settings) tensorflow(p parameters, instances int) error {
	own := map[string]string{"NUM_STREAMS": strconv.Itoa(max(1, instances))}
	each := threads
	for _, key := range []string{"TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS"} {
		v, ok := p.get(key)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > 1024 {
			return fmt.Errorf("parameter '%s': '%s' is no number of threads (1 to 1024; 0: as many as without it)", key, v)
		}
		if key == "TF_NUM_INTRA_THREADS" && n > 0 {
			each = n
		} else if key == "TF_NUM_INTER_THREADS" {
			s.unused = append(s.unused, "parameter 'TF_NUM_INTER_THREADS' is not used: OpenVINO has one kind of threads")
		}
	}
	own["INFERENCE_NUM_THREADS"] = strconv.Itoa(each * max(1, instances))
	for key, only := range map[string]string{"TF_GRAPH_TAG": "serve", "TF_SIGNATURE_DEF": "serving_default"} {
		if v, ok := p.get(key); ok && v != only {
			return fmt.Errorf("parameter '%s' is '%s': OpenVINO reads '%s' alone", key, v, only)
		}
	}
	for _, key := range refusedTF {
		if _, ok := p.get(key); ok {
			return fmt.Errorf("parameter '%s' is not supported: OpenVINO runs no operations before the first inference", key)
		}
	}
	for key := range p.m {
		switch key {
		case "TF_USE_PER_SESSION_THREADS", "MAX_SESSION_SHARE_COUNT":
			s.unused = append(s.unused, fmt.Sprintf("parameter '%s' is not used: instances share one compiled model", key))
		}
	}
	s.set(own)
	return nil
}

// set makes properties, in a fixed order.
func (s *settings) set(own map[string]string) {
	for key, v := range own {
		s.properties = append(s.properties, ov.Property{key, v})
	}
	slices.SortFunc(s.properties, func(a, b ov.Property) int { return strings.Compare(a[0], b[0]) })
}
