package workers

import (
	"testing"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// TestDescribedFolder: the model's folder is found whatever the config calls its file.
func TestDescribedFolder(t *testing.T) {
	for _, row := range []struct {
		name, file string
		version    int64
	}{
		{"", "/r/m/3/model.onnx", 3},
		{"model.onnx", "/r/m/3/model.onnx", 3},
		{"deep/./er/model.onnx", "/r/m/3/deep/er/model.onnx", 3},
		{"other.onnx", "/r/m/3/model.onnx", 3},
	} {
		cfg := &modelconfig.ModelConfig{Name: "m", DefaultModelFilename: row.name}
		spec, err := describeSpec(&worker.DescribeRequest{ModelFile: row.file, Config: cfg})
		if err != nil || spec.ModelDir != "/r/m" || spec.Version != row.version || spec.ModelFile != row.file {
			t.Errorf("%+v: %+v, %v", row, spec, err)
		}
	}
}
