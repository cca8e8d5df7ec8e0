package fil

import (
	"testing"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/fil/forest"
)

// FuzzConfig wants a config to be refused, or its dims to be what an answer fills.
func FuzzConfig(f *testing.F) {
	f.Add("predict_proba", "true", int64(3), int64(-1), uint8(2), 3)
	f.Add("is_classifier", "false", int64(2), int64(1), uint8(0), 1)
	f.Add("threshold", "NaN", int64(-1), int64(1<<62), uint8(1), 2)
	f.Fuzz(func(t *testing.T, key, value string, first, second int64, task uint8, classes int) {
		s, err := newSettings(&modelconfig.ModelConfig{Parameters: map[string]*modelconfig.ModelParameter{key: {StringValue: value}}})
		if err != nil {
			return
		}
		model := &forest.Forest{Task: forest.Task(task % 5), Features: 4, Targets: 1 + int(task)%3, Classes: 1 + classes&0xffff}
		o := newOutput(model, s)
		if o.fit([]int64{first, second}, s, model) != nil {
			return
		}
		n := int64(1)
		for _, d := range o.shape {
			n *= d
		}
		if n != int64(o.width()) {
			t.Errorf("dims %d, %d became %v, of %d values", first, second, o.shape, o.width())
		}
	})
}
