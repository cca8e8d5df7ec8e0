package triton

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-serve/sluice/proto/worker"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/backend/fil"
	"github.com/sluice-serve/sluice/workers/backend/onnxruntime"
	"github.com/sluice-serve/sluice/workers/backend/openvino"
)

func rows(t *testing.T) map[string]*worker.Backend {
	t.Helper()
	all, err := Backends()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*worker.Backend{}
	for _, b := range all {
		if b.GetName() == "" || byName[b.GetName()] != nil {
			t.Errorf("backend %q has no name, or is there twice", b.GetName())
		}
		byName[b.GetName()] = b
	}
	return byName
}

// No two backends have one platform, and a backend with several formats has no two defaults.
func TestTable(t *testing.T) {
	platforms := map[string]string{}
	for name, b := range rows(t) {
		defaults := 0
		for _, f := range b.GetFormats() {
			if f.GetDefault() {
				defaults++
			}
			if other := platforms[f.GetPlatform()]; f.GetPlatform() != "" && other != "" {
				t.Errorf("platform %s is one of %s and of %s", f.GetPlatform(), other, name)
			}
			platforms[f.GetPlatform()] = name
			if f.GetFilename() == "" {
				t.Errorf("a format of %s has no file name", name)
			}
		}
		if defaults > 1 {
			t.Errorf("%s has %d default formats", name, defaults)
		}
	}
}

// What a worker's own backends say of themselves is what is known of them where no worker is there.
func TestSameWord(t *testing.T) {
	for name, factory := range map[string]backend.Factory{"onnxruntime": onnxruntime.New(""), "fil": fil.New(""),
		"openvino": openvino.New(""), "tensorflow": openvino.NewTensorFlow("")} {
		b, err := factory(nil)
		if err != nil {
			t.Fatal(err)
		}
		said := b.Info().Message(name)
		said.Unavailable, said.Engine = "", nil // there is no library at ""
		if known := rows(t)[name]; !proto.Equal(said, known) {
			t.Errorf("%s says\n%v\nbut the table has\n%v", name, said, known)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
