package flags

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/load"
)

func TestLoadReport(t *testing.T) {
	for value, want := range map[string]load.Format{"": load.None, "off": load.None, "text": load.Text, "JSON": load.JSON, "bin": load.Binary} {
		args := []string{"--model-repository=" + t.TempDir()}
		if value != "" {
			args = append(args, "--load-report="+value)
		}
		s, err := ParseServe(args, func(string) (string, bool) { return "", false })
		if err != nil || s.Config.Load.Always != want {
			t.Errorf("%q: got %v %v, want %v", value, s.Config.Load.Always, err, want)
		}
	}
	_, err := ParseServe([]string{"--model-repository=x", "--load-report=xml"}, func(string) (string, bool) { return "", false })
	if err == nil || !strings.Contains(err.Error(), "'xml' is not off, text, json or bin") {
		t.Errorf("xml: %v", err)
	}
}
