package python

import (
	"slices"
	"testing"
)

func TestEnvironment(t *testing.T) {
	all := []string{"PATH=/bin", "SLUICE_X=1", "AWS_REGION=a", "HF_TOKEN=b", "MY_API_KEY=c", "DB_PASSWORD=d",
		"A_SECRET=e", "X_CREDENTIALS=f", "TOKENIZERS_PARALLELISM=no", "CUDA_VISIBLE_DEVICES=_TOKEN", "_TOKEN"}
	o, err := readOptions(map[string]string{"environment": "HF_TOKEN, AWS_REGION"})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		passed []string
		want   []string
	}{
		{"nothing is passed", nil, []string{"PATH=/bin", "TOKENIZERS_PARALLELISM=no", "CUDA_VISIBLE_DEVICES=_TOKEN"}},
		{"two by name", o.passed,
			[]string{"PATH=/bin", "AWS_REGION=a", "HF_TOKEN=b", "TOKENIZERS_PARALLELISM=no", "CUDA_VISIBLE_DEVICES=_TOKEN"}},
	} {
		if got := environment(all, row.passed); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, got, row.want)
		}
	}
	if _, err := readOptions(map[string]string{"environment": "A=b"}); err == nil {
		t.Error("a value is taken")
	}
}
