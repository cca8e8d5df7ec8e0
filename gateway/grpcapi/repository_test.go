package grpcapi

import (
	"testing"

	"google.golang.org/grpc/status"

	"github.com/sluice-serve/sluice/proto/inference"
)

func load(t *testing.T, r *rig, repository, model string, params map[string]*inference.ModelRepositoryParameter) error {
	_, err := r.client.RepositoryModelLoad(t.Context(), &inference.RepositoryModelLoadRequest{RepositoryName: repository, ModelName: model, Parameters: params})
	return err
}

func unload(t *testing.T, r *rig, repository, model string, params map[string]*inference.ModelRepositoryParameter) error {
	_, err := r.client.RepositoryModelUnload(t.Context(), &inference.RepositoryModelUnloadRequest{RepositoryName: repository, ModelName: model, Parameters: params})
	return err
}

func TestModelControl(t *testing.T) {
	r := start(t)
	type param = inference.ModelRepositoryParameter
	file := map[string]*param{"file:1/model.onnx": {ParameterChoice: &inference.ModelRepositoryParameter_BytesParam{BytesParam: make([]byte, 300)}}}
	flag := map[string]*param{"unload_dependents": {ParameterChoice: &inference.ModelRepositoryParameter_BoolParam{BoolParam: true}}}
	text := map[string]*param{"unload_dependents": {ParameterChoice: &inference.ModelRepositoryParameter_StringParam{StringParam: "x"}}}
	for _, c := range []struct {
		name string
		call func() error
		want string
	}{
		{"load", func() error { return load(t, r, "", "m", nil) }, ""},
		{"load of another repository", func() error { return load(t, r, "x", "m", nil) }, "Unimplemented: 'repository_name' specification is not supported"},
		{"load with a file", func() error { return load(t, r, "", "m", file) }, "InvalidArgument: 1 parameters, file of 300 bytes"},
		{"load of nothing", func() error { return load(t, r, "", "", nil) }, "NotFound: Request for unknown model: '' is not found"},
		{"unload", func() error { return unload(t, r, "", "m", nil) }, ""},
		{"unload of another repository", func() error { return unload(t, r, "x", "m", nil) }, "Unimplemented: 'repository_name' specification is not supported"},
		{"unload with dependents", func() error { return unload(t, r, "", "m", flag) }, "Unavailable: with dependents"},
		{"unload with a text", func() error { return unload(t, r, "", "m", text) },
			"InvalidArgument: invalid value type for 'unload_dependents' parameter, expected bool_param."},
	} {
		got := ""
		if err := c.call(); err != nil {
			got = status.Code(err).String() + ": " + status.Convert(err).Message()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
