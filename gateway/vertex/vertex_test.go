package vertex

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/gateway/httpapi"
)

// TestServing: the default model is the named one, or the only one.
// Source of the texts: VertexAiAPIServer::Create of the original.
func TestServing(t *testing.T) {
	for _, row := range []struct {
		def    string
		models []string
		fault  string
	}{
		{"", []string{"a"}, ""},
		{"", []string{"a", "a"}, ""}, // two versions
		{"", []string{"a", "b"}, "Expect the model repository contains only a single model if default model is not specified"},
		{"", nil, "Expect the model repository contains only a single model if default model is not specified"},
		{"b", []string{"a", "b"}, ""},
		{"c", []string{"a", "b"}, "Expect the default model 'c' is loaded"},
	} {
		s := New(Config{Predict: "/p", Health: "/h", Default: row.def}, nil)
		before := s.Alias(&httpapi.Call{Path: "/p", Method: "POST", Header: none{}})
		err := s.Serving(row.models)
		if (err == nil) != (row.fault == "") || err != nil && err.Error() != row.fault {
			t.Errorf("%q of %v: %v, want %q", row.def, row.models, err, row.fault)
		}
		if after := s.Alias(&httpapi.Call{Path: "/p", Method: "POST", Header: none{}}); (after != before) != (err == nil) {
			t.Errorf("%q of %v: predictions are taken %t", row.def, row.models, after != before)
		}
	}
}

type none struct{}

func (none) Get(string) string              { return "" }
func (none) Count(string) int               { return 0 }
func (none) Each(func(string, string) bool) {}

func TestRoutes(t *testing.T) {
	for _, row := range []struct {
		path, route string
		want        bool
	}{
		{"/predict", "/predict", true}, {"/predict/", "/predict", false}, {"/PREDICT", "/predict", false},
		{"/v1/endpoints/1/deployedModels/2:predict", "/v1/endpoints/1/deployedModels/2:predict", true},
		{"/v1/endpoints/1/deployedModels/2%3Apredict", "/v1/endpoints/1/deployedModels/2:predict", true},
		{"/predict%zz", "/predict", false}, {"/aXb", "/a.b", false}, // no regular expressions
	} {
		if got := same(row.path, row.route); got != row.want {
			t.Errorf("%s is %s: %t", row.path, row.route, got)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []Config{{}, {Predict: "/p"}, {Health: "/h"}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "is not defined for Vertex AI endpoint") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if c := (Config{Predict: "/p", Health: "/h"}); c.Validate() != nil {
		t.Error(c.Validate())
	}
}
