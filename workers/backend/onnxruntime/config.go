//go:build onnxruntime && cgo

package onnxruntime

import (
	"log/slog"
	"strconv"
	"strings"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime/ort"
)

// options are those of --backend-config=onnxruntime,key=value. Keys of the core, such
// as default-max-batch-size, are not ours to read.
// Source: README of the original's onnxruntime_backend.
type options struct {
	intra, inter int // threads of each session; >= 1
	global       bool
	libraries    []string // op-library-dir: folders of libraries that models may name
	caches       []string // tensorrt-cache-dir: folders where TensorRT may keep files
}

func parseOptions(set map[string]string) (options, error) {
	o := options{intra: 1, inter: 1}
	for _, key := range []string{"intra_op_thread_count", "intra-op-num-threads"} {
		if err := parseCount(set[key], &o.intra); err != nil {
			return o, infer.Errorf(infer.InvalidArg, "backend option '%s' of onnxruntime: %w", key, err)
		}
	}
	for _, key := range []string{"inter_op_thread_count", "inter-op-num-threads"} {
		if err := parseCount(set[key], &o.inter); err != nil {
			return o, infer.Errorf(infer.InvalidArg, "backend option '%s' of onnxruntime: %w", key, err)
		}
	}
	if v, ok := set["enable-global-threadpool"]; ok {
		b, err := parseBool(v)
		if err != nil {
			return o, infer.Errorf(infer.InvalidArg, "backend option 'enable-global-threadpool' of onnxruntime: %w", err)
		}
		o.global = b
	}
	var err error
	if o.libraries, err = folders(set, "op-library-dir"); err != nil {
		return o, err
	}
	o.caches, err = folders(set, "tensorrt-cache-dir")
	return o, err
}

// parseCount leaves n alone for "" and 0, the original's "default".
func parseCount(v string, n *int) error {
	if v == "" {
		return nil
	}
	i, err := strconv.Atoi(v)
	if err != nil || i < 0 || i > 1024 {
		return infer.Errorf(infer.InvalidArg, "'%s' is no thread count (0 to 1024)", v)
	}
	if i > 0 {
		*n = i
	}
	return nil
}

// parseBool takes what the original takes: true, yes, on, 1 and their opposites.
func parseBool(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0":
		return false, nil
	}
	return false, infer.Errorf(infer.InvalidArg, "failed to convert '%s' to boolean", v)
}

// settings are how the sessions of one model version are made and run.
type settings struct {
	session ort.SessionConfig // without execution providers
	run     []ort.Option
	share   bool // CPU instances share one session
	gpu     accelerators
}

func newSettings(spec backend.Spec, o options, log *slog.Logger) (settings, error) {
	cfg, files := spec.Config, o.files(spec)
	s := settings{session: ort.SessionConfig{Graph: graphLevel(cfg), Intra: o.intra, Inter: o.inter}}
	p := parameters{cfg.GetParameters()}
	for key, n := range map[string]*int{"intra_op_thread_count": &s.session.Intra, "inter_op_thread_count": &s.session.Inter} {
		if v, ok := p.get(key); ok && !o.global {
			if err := parseCount(v, n); err != nil {
				return s, infer.Errorf(infer.InvalidArg, "parameter '%s': %w", key, err)
			}
		}
	}
	if err := p.mode(&s); err != nil {
		return s, err
	}
	if s.session.Parallel && s.session.Inter == 1 && !o.global {
		log.Warn("execution_mode 1 has no effect without inter_op_thread_count over 1", "model", cfg.GetName())
	}
	if err := p.memory(&s); err != nil {
		return s, err
	}
	s.share = o.global || s.session.Intra == 1 && (s.session.Inter == 1 || !s.session.Parallel)
	if v, ok := p.get("share_session_between_instances"); ok {
		b, err := parseBool(v)
		if err != nil {
			return s, infer.Errorf(infer.InvalidArg, "parameter 'share_session_between_instances': %w", err)
		}
		s.share = b
	}
	s.session.Entries = append(s.session.Entries, ort.Option{Key: "session.intra_op.allow_spinning", Value: "0"},
		ort.Option{Key: "session.inter_op.allow_spinning", Value: "0"})
	entries, err := p.entries(files, log)
	if err != nil {
		return s, err
	}
	s.session.Entries = append(s.session.Entries, entries...)
	if s.session.Libraries, err = files.operators(cfg.GetModelOperations().GetOpLibraryFilename()); err != nil {
		return s, err
	}
	s.gpu, err = newAccelerators(cfg, files)
	return s, err
}

// graphLevel maps optimization.graph.level; 0 and the unknown are everything.
func graphLevel(cfg *modelconfig.ModelConfig) ort.GraphLevel {
	switch cfg.GetOptimization().GetGraph().GetLevel() {
	case -1:
		return ort.GraphBasic
	case 1:
		return ort.GraphExtended
	case 2:
		return ort.GraphOff
	}
	return ort.GraphAll
}

type parameters struct {
	m map[string]*modelconfig.ModelParameter
}

func (p parameters) get(key string) (string, bool) {
	v, ok := p.m[key]
	return v.GetStringValue(), ok
}

func (p parameters) mode(s *settings) error {
	v, ok := p.get("execution_mode")
	switch {
	case !ok || v == "" || v == "0":
	case v == "1":
		s.session.Parallel = true
	default:
		return infer.Errorf(infer.InvalidArg,
			"Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got %s .", v)
	}
	return nil
}

func (p parameters) memory(s *settings) error {
	for key, to := range map[string]**bool{"enable_mem_arena": &s.session.Arena, "enable_mem_pattern": &s.session.Pattern} {
		if v, ok := p.get(key); ok {
			b, err := parseBool(v)
			if err != nil {
				return infer.Errorf(infer.InvalidArg, "parameter '%s': %w", key, err)
			}
			*to = &b
		}
	}
	if v, ok := p.get("memory.enable_memory_arena_shrinkage"); ok {
		s.run = append(s.run, ort.Option{Key: "memory.enable_memory_arena_shrinkage", Value: v})
	}
	return nil
}
