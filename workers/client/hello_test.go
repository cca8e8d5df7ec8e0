package client

import (
	"strings"
	"testing"

	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

func TestHelloOfBackends(t *testing.T) {
	format := func(platform, file string) *workerpb.Backend {
		return &workerpb.Backend{Name: "b", Formats: []*workerpb.ModelFormat{{Platform: platform, Filename: file}}}
	}
	runtime := func(file string) *workerpb.Backend {
		return &workerpb.Backend{Name: "b", Runtimes: []*workerpb.Runtime{{File: file}}}
	}
	many := make([]*workerpb.Backend, maxBackends+1)
	for i := range many {
		many[i] = &workerpb.Backend{Name: "b"}
	}
	for _, row := range []struct {
		name string
		all  []*workerpb.Backend
		want string // part of the error; "" for none
	}{
		{"silent", []*workerpb.Backend{{Name: "b"}}, ""},
		{"all", []*workerpb.Backend{format("p", "model.b"), {Name: "c", Runtimes: []*workerpb.Runtime{{File: "lib_<name>.so"}}, Placements: []*workerpb.Placement{{}}}}, ""},
		{"unknown kind", []*workerpb.Backend{{Name: "b", Placements: []*workerpb.Placement{{Kind: 77}}, Memory: []workerpb.MemoryKind{77}}}, ""},
		{"no name", []*workerpb.Backend{{}}, "its name is empty or too long"},
		{"long name", []*workerpb.Backend{{Name: strings.Repeat("ä", 200)}}, `of backend "` + strings.Repeat("ä", 32) + `…" can't be: its name is empty or too long`},
		{"twice", []*workerpb.Backend{{Name: "b"}, {Name: "b"}}, "it is named twice"},
		{"too many", many, "257 backends, the most is 256"},
		{"file elsewhere", []*workerpb.Backend{format("p", "../model.b")}, `the model format with platform "p" has the file name "../model.b"`},
		{"file in a folder", []*workerpb.Backend{format("p", "a/model.b")}, "has the file name"},
		{"absolute file", []*workerpb.Backend{format("p", "/model.b")}, "has the file name"},
		{"empty format", []*workerpb.Backend{format("", "")}, "neither a platform nor a file name"},
		{"runtime elsewhere", []*workerpb.Backend{runtime("../x.so")}, `the file name "../x.so" of a runtime`},
		{"runtime without a name", []*workerpb.Backend{runtime("")}, `the file name "" of a runtime`},
		{"formats without end", []*workerpb.Backend{{Name: "b", Formats: make([]*workerpb.ModelFormat, maxOfBackend+1)}}, "65 model formats, the most is 64"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := checkHello(&workerpb.HelloResponse{Backends: row.all})
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
	if err := checkHello(&workerpb.HelloResponse{Devices: make([]*workerpb.Device, maxDevices+1)}); err == nil {
		t.Error("devices without end were accepted")
	}
}
