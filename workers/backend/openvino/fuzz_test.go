package openvino

import (
	"testing"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend"
)

// FuzzSettings wants parameters to be taken, or refused by their name.
func FuzzSettings(f *testing.F) {
	for key, value := range map[string]string{"NUM_STREAMS": "AUTO", "INFERENCE_NUM_THREADS": "4", "HINT_BF16": "YES", "TF_GRAPH_TAG": "serve"} {
		f.Add(key, value, "TF_NUM_INTRA_THREADS", "2")
	}
	f.Fuzz(func(t *testing.T, a, va, b, vb string) {
		sp := backend.Spec{Instances: 2, Config: &modelconfig.ModelConfig{Parameters: map[string]*modelconfig.ModelParameter{
			a: {StringValue: va}, b: {StringValue: vb}}}}
		for _, k := range []*kind{&native, &tensorflow} {
			s, err := newSettings(sp, k)
			if err == nil && len(s.properties) == 0 {
				t.Errorf("%s: no settings of %q", k.name, sp.Config.Parameters)
			}
			for _, p := range s.properties {
				if p[0] == "" || p[1] == "" {
					t.Errorf("%s: %q", k.name, s.properties)
				}
			}
		}
	})
}
