package modelconfig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

func corpus(t testing.TB, folder string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", folder, "*.pbtxt"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("testdata/%s: %d files, %v", folder, len(paths), err)
	}
	files := map[string][]byte{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(path, ".pbtxt")] = data
	}
	return files
}

// The library's parser says the same of every config that is right.
func TestParseAgreesWithPrototext(t *testing.T) {
	for name, data := range corpus(t, "good") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			got, _, err := Parse("config.pbtxt", data)
			if err != nil {
				t.Fatal(err)
			}
			want := &modelconfig.ModelConfig{}
			if err := prototext.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), want); err != nil {
				t.Fatalf("prototext: %v", err)
			}
			if !proto.Equal(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
		})
	}
}

func TestParseFaults(t *testing.T) {
	for name, data := range corpus(t, "bad") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := os.ReadFile(name + ".want")
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = Parse("config.pbtxt", data)
			if err == nil {
				t.Fatalf("accepted, want %s", want)
			}
			if infer.CodeOf(err) != infer.InvalidArg {
				t.Errorf("code %v, want %v", infer.CodeOf(err), infer.InvalidArg)
			}
			for line := range strings.Lines(string(want)) {
				if line = "config.pbtxt:" + strings.TrimSuffix(line, "\n"); !strings.Contains(err.Error(), line) {
					t.Errorf("got  %s\nwant %s", err, line)
				}
			}
		})
	}
}

func TestParseLimits(t *testing.T) {
	for name, text := range map[string]string{
		"size":          strings.Repeat("#", MaxSize+1),
		"unknown depth": strings.Repeat("a {", 1e5),
		"list depth":    "a: " + strings.Repeat("[", 1e5),
		"known depth":   strings.Repeat("input { reshape {", 1e5),
		"messages":      strings.Repeat("input{}", 1<<17),
		"entries":       strings.Repeat("parameters{}", 1<<17),
		"twice":         strings.Repeat("name:'' ", 1<<17),
		"unknown":       strings.Repeat("n:'' ", 1<<17),
	} {
		if _, _, err := Parse("c", []byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSourceFind(t *testing.T) {
	_, src, err := Parse("c", []byte("name: \"m\"\ninput [ { name: \"a\" },\n  { name: \"b\"\n dims: [1] } ]\nmax_batch_size: 0"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Pos{"name": {1, 1}, "input[0]": {2, 9}, "input[1].dims": {4, 2}, "input[1].data_type": {3, 3}, "input": {2, 1}, "output": {}} {
		if got, _ := src.Find(path); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	if !src.Given("max_batch_size") || src.Given("backend") {
		t.Error("Given is wrong")
	}
}

// stricter says that the fault is one that prototext lets pass, on purpose.
func stricter(err error) bool {
	for _, f := range FaultsOf(err) {
		for _, known := range []string{"NUL byte", "more than", "it is one of"} {
			if strings.Contains(f.Msg, known) {
				return true
			}
		}
	}
	return false
}

func FuzzParse(f *testing.F) {
	for _, folder := range []string{"good", "bad"} {
		for _, data := range corpus(f, folder) {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _, err := Parse("c", data)
		want := &modelconfig.ModelConfig{}
		wantErr := prototext.Unmarshal(bytes.TrimPrefix(data, []byte("\ufeff")), want)
		switch {
		case err != nil:
			if infer.CodeOf(err) != infer.InvalidArg {
				t.Fatalf("code %v of %v", infer.CodeOf(err), err)
			}
			if wantErr == nil && !stricter(err) {
				t.Fatalf("prototext accepts it: %v", err)
			}
			return
		case wantErr == nil && !proto.Equal(got, want) && !strings.Contains(fmt.Sprint(got), "nan"):
			t.Fatalf("got %v\nprototext %v", got, want)
		}
		// Whatever was accepted can be completed and checked without a panic.
		_, _ = Complete(got, nil, Options{Folder: "m", Known: known(t), Backends: map[string]*worker.Backend{"identity": {Name: "identity"}}})
		_ = Validate(got, Options{Folder: "m", Known: known(t), Backends: map[string]*worker.Backend{"identity": {Name: "identity"}}})
	})
}
