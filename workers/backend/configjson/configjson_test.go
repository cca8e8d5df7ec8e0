package configjson_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/workers/backend/configjson"
)

// The files of testdata are what Triton 2.51 gave a backend. Its maps have no order.
var parameters = regexp.MustCompile(`"parameters":\{"(?:file|a/b)".*?\}\},"model_warmup"`)

func TestAsTriton(t *testing.T) {
	for _, name := range []string{"plain", "full"} {
		want, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		want = bytes.TrimSpace(want)
		c := &modelconfig.ModelConfig{}
		if err := protojson.Unmarshal(want, c); err != nil {
			t.Fatal(err)
		}
		got := configjson.Of(c)
		var a, b any
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%s: %v in %s", name, err, got)
		}
		if err := json.Unmarshal(want, &b); err != nil {
			t.Fatal(err)
		}
		sorted, _ := json.Marshal(a)
		other, _ := json.Marshal(b)
		if !bytes.Equal(sorted, other) {
			t.Errorf("%s: other values: got\n%s\nwant\n%s", name, sorted, other)
		}
		if !bytes.Equal(parameters.ReplaceAll(got, nil), parameters.ReplaceAll(want, nil)) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

func TestText(t *testing.T) {
	if got := string(configjson.AppendText(nil, "a\"\\/<&\b\f\n\r\t\x01\x1fé\xff")); got != "\"a\\\"\\\\/<&\\b\\f\\n\\r\\t\\u0001\\u001Fé\xff\"" {
		t.Errorf("got %s", got)
	}
}
