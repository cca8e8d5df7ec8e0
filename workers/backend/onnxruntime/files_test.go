//go:build onnxruntime && cgo

package onnxruntime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
)

const externalConfig = `name: "external"
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output { name: "Y" data_type: TYPE_FP32 dims: 4 }
`

// lay writes files, with folders, below dir.
func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// customLibrary compiles a library of custom operators that has none.
func customLibrary(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: cc is not installed")
	}
	dir := t.TempDir()
	const source = "void *RegisterCustomOps(void *options, const void *api) { return (void)options, (void)api, (void *)0; }\n"
	lay(t, dir, map[string]string{"ops.c": source})
	out := filepath.Join(dir, "ops.so")
	if text, err := exec.Command(cc, "-shared", "-fPIC", "-o", out, filepath.Join(dir,
		"ops.c")).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, text)
	}
	return out
}

// loaded loads and closes a model. A load that waits for something is an error.
func loaded(t *testing.T, b backend.Backend, s backend.Spec) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		m, err := b.Load(t.Context(), s)
		if err == nil {
			err = m.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the load waits")
		return nil
	}
}

// TestOperatorLibraries: a library of custom operators lies in the model's folder, or in one
// that the server's settings name, and what is refused tells nothing of other folders.
func TestOperatorLibraries(t *testing.T) {
	library := customLibrary(t)
	data, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	allowed := filepath.Join(t.TempDir(), "ops")
	lay(t, allowed, map[string]string{"more/ops.so": string(data)})
	lay(t, filepath.Dir(allowed), map[string]string{"next.so": string(data)})
	model := spec(t, "addsub", addsubConfig)
	lay(t, model.ModelDir, map[string]string{"ops.so": string(data), "lib/ops.so": string(data),
		"1/ops.so": string(data), "text.so": "no library"})
	for name, to := range map[string]string{"out.so": library, "gone.so": library + ".gone", "in.so": "lib/ops.so",
		"up": filepath.Dir(library)} {
		if err := os.Symlink(to, filepath.Join(model.ModelDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(model.ModelDir, "pipe.so"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, set := opened(t, nil), opened(t, map[string]string{"op-library-dir": "/nonexistent:" + allowed})
	const refused = "is no file in the model's folder"
	for _, row := range []struct{ name, fault, faultSet string }{
		{"ops.so", "", ""},
		{"lib/ops.so", "", ""},
		{"./1/ops.so", "", ""},
		{"in.so", "", ""},
		{filepath.Join(model.ModelDir, "lib/ops.so"), "", ""},
		{"more/ops.so", refused, ""},
		{filepath.Join(allowed, "more/ops.so"), refused, ""},
		{filepath.Join(allowed, "../next.so"), refused, refused},
		{"more/none.so", refused, refused},
		{library, refused, refused},
		{library + ".gone", refused, refused},
		{"/etc/passwd", refused, refused},
		{"/etc/nothing.so", refused, refused},
		{"out.so", refused, refused},
		{"gone.so", refused, refused},
		{"up/ops.so", refused, refused},
		{"../" + filepath.Base(model.ModelDir) + "/ops.so", refused, refused},
		{"libm.so.6", refused, refused}, // the dynamic linker would find it
		{"pipe.so", refused, refused},
		{"lib", refused, refused},
		{"", refused, refused},
		{"ops.so\x00.txt", refused, refused},
		{"text.so", "onnx runtime error", "onnx runtime error"},
	} {
		model.Config = parse(t, addsubConfig)
		model.Config.ModelOperations = operations(row.name)
		for _, with := range []struct {
			b     backend.Backend
			fault string
		}{{plain, row.fault}, {set, row.faultSet}} {
			err := loaded(t, with.b, model)
			if _, described := with.b.Describe(t.Context(), model); fmt.Sprint(described) != fmt.Sprint(err) {
				t.Errorf("%q: Describe says %v, Load %v", row.name, described, err)
			}
			switch {
			case with.fault == "" && err != nil:
				t.Errorf("%q: %v", row.name, err)
			case with.fault != "" && (err == nil || infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(),
				with.fault)):
				t.Errorf("%q: %v, want %s", row.name, err, with.fault)
			}
		}
	}
}

// TestRefusalsTellNothing: the text about a file elsewhere is the same whether it is there.
func TestRefusalsTellNothing(t *testing.T) {
	dir := t.TempDir()
	lay(t, dir, map[string]string{"there": "x"})
	b, model := opened(t, nil), spec(t, "addsub", addsubConfig)
	if err := os.Symlink(dir, filepath.Join(model.ModelDir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, "../../../../../../../.." + dir, "link"} {
		var texts []string
		for _, name := range []string{"there", "gone"} {
			model.Config = parse(t, addsubConfig)
			model.Config.ModelOperations = operations(at + "/" + name)
			err := loaded(t, b, model)
			if err == nil {
				t.Fatalf("%s/%s was loaded", at, name)
			}
			texts = append(texts, strings.ReplaceAll(err.Error(), name, "X"))
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: there is a file: %s; there is none: %s", at, texts[0], texts[1])
		}
	}
}

// TestSessionEntries: parameters that are options of ONNX Runtime's sessions read files of
// the model's folder alone, and write none.
func TestSessionEntries(t *testing.T) {
	secret := t.TempDir()
	lay(t, secret, map[string]string{"weights": strings.Repeat("\x00\x00\x80\x3f", 4), "partition": ""})
	for _, row := range []struct{ key, value, fault string }{
		{"session.use_device_allocator_for_initializers", "1", ""},
		{"session.disable_prepacking", "1", ""},
		{"session.set_denormal_as_zero", "0", ""},
		{"session.nobody_knows", "1", ""}, // left out, as Triton leaves it out
		{"session.model_external_initializers_file_folder_path", secret, "is no folder in the model's folder"},
		{"session.model_external_initializers_file_folder_path", "../", "is no folder in the model's folder"},
		{"session.model_external_initializers_file_folder_path", "link", "is no folder in the model's folder"},
		{"session.model_external_initializers_file_folder_path", "none", "is no folder in the model's folder"},
		{"session.model_external_initializers_file_folder_path", "deep/data", ""},
		{"session.collect_node_memory_stats_to_file", filepath.Join(secret, "w1"), "would write a file"},
		{"session.collect_node_memory_stats_to_file", "stats", "would write a file"},
		{"session.collect_node_memory_stats_to_file\x00x", filepath.Join(secret, "w1"), ""},
		{"session.optimized_model_filepath", filepath.Join(secret, "w2"), "would write a file"},
		{"session.optimized_model_external_initializers_file_name", "w3", "would write a file"},
		{"session.enable_profiling", filepath.Join(secret, "w4"), "would write a file"},
		{"session.debug_layout_transformation", "1", "would write a file"},
		{"session.node_partition_config_file", filepath.Join(secret, "w5"), "is no file in the model's folder"},
		{"session.node_partition_config_file", filepath.Join(secret, "partition"), "is no file in the model's folder"},
		{"session.node_partition_config_file", "w6", "is no file in the model's folder"},
		{"session.moe_expert_counter_state_file", filepath.Join(secret, "partition"), "is no file in the model's folder"},
		{"session.resource_cuda_partitioning_settings", "1," + filepath.Join(secret, "partition"),
			"is no file in the model's folder"},
		{"session.resource_cuda_partitioning_settings", "1,../../partition", "is no file in the model's folder"},
		{"session.resource_cuda_partitioning_settings", "1,", ""},
		{"session.load_model_format", "ONNX", ""},
		{"ep.context_enable", "1", ""}, // none of the session's
	} {
		model := spec(t, "external", externalConfig)
		zeros := strings.Repeat("\x00", 16)
		lay(t, model.ModelDir, map[string]string{"1/weights": zeros, "deep/data/weights": zeros})
		if err := os.Symlink(secret, filepath.Join(model.ModelDir, "link")); err != nil {
			t.Fatal(err)
		}
		model.Config.Parameters = parameter(row.key, row.value)
		err := loaded(t, opened(t, nil), model)
		switch {
		case row.fault == "" && err != nil:
			t.Errorf("%s = %q: %v", row.key, row.value, err)
		case row.fault != "" && (err == nil || infer.CodeOf(err) != infer.InvalidArg || !strings.Contains(err.Error(),
			row.fault)):
			t.Errorf("%s = %q: %v, want %s", row.key, row.value, err, row.fault)
		}
	}
	entries, err := os.ReadDir(secret)
	if err != nil || len(entries) != 2 {
		t.Errorf("the other folder holds %v, %v; nothing may be written there", entries, err)
	}
}

// TestExternalData: ONNX Runtime keeps the files of weights to the folder of the model file.
func TestExternalData(t *testing.T) {
	for _, link := range []string{"", "../../secret"} {
		model := spec(t, "external", externalConfig)
		lay(t, filepath.Dir(model.ModelDir), map[string]string{"secret": strings.Repeat("\x00", 16)})
		if link == "" {
			lay(t, model.ModelDir, map[string]string{"1/weights": strings.Repeat("\x00", 16)})
		} else if err := os.Symlink(link, filepath.Join(model.ModelDir, "1/weights")); err != nil {
			t.Fatal(err)
		}
		if err := loaded(t, opened(t, nil), model); (err != nil) != (link != "") {
			t.Errorf("weights that are a link to %q: %v", link, err)
		}
	}
}

func operations(library string) *modelconfig.ModelOperations {
	return &modelconfig.ModelOperations{OpLibraryFilename: []string{library}}
}

func parameter(key, value string) map[string]*modelconfig.ModelParameter {
	return map[string]*modelconfig.ModelParameter{key: {StringValue: value}}
}
