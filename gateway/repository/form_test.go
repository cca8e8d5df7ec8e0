package repository

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// again is a copy of a request that shares nothing that validation writes.
func again(req infer.Request, form *infer.Form) *infer.Request {
	req.Form = form
	req.Inputs, req.Outputs = slices.Clone(req.Inputs), slices.Clone(req.Outputs)
	for i := range req.Inputs {
		req.Inputs[i].Shape = slices.Clone(req.Inputs[i].Shape)
	}
	return &req
}

// What is said of requests of one form, by models in turn, is what is said of each alone.
func TestForms(t *testing.T) {
	models := map[string][2]*Model{}
	for name, config := range validated {
		models[name] = [2]*Model{model(t, config), model(t, config+` version_policy { latest { num_versions: 3 } }`)}
	}
	told := func(m *Model, req *infer.Request) string {
		err := m.Validate(req)
		return fmt.Sprint(err, req.Rows, req.Inputs, len(req.Outputs))
	}
	rows := append(requests[:len(requests):len(requests)], struct {
		name, model string
		req         infer.Request
		want        string
		rows        int
	}{"an output twice", "flat", infer.Request{Inputs: []infer.Tensor{in("A", infer.Int64, 24, 1, 3), in("B", infer.Bool, 1, 1)},
		Outputs: []infer.RequestedOutput{{Name: "OUT"}, {Name: "OUT"}}}, "", 1})
	for _, row := range rows {
		var form infer.Form
		for i := range 6 {
			// the last two go to a model that may see it otherwise
			name := row.model
			if i > 3 {
				name = "flat"
			}
			m := models[name][i%2]
			if got, want := told(m, again(row.req, &form)), told(m, again(row.req, nil)); got != want {
				t.Errorf("%s: the %dth: got %s, want %s", row.name, i, got, want)
			}
		}
	}
}

// Data that decide are looked at each time.
func TestFormsWithBytes(t *testing.T) {
	m, form := model(t, validated["opt"]), &infer.Form{}
	good, bad := inputs(text("IN", "\x01\x00\x00\x00a\x00\x00\x00\x00", 1, 2)), inputs(text("IN", "\x02\x00\x00\x00a\x00\x00\x00\x00", 1, 2))
	for range 3 {
		if err := m.Validate(again(good, form)); err != nil {
			t.Fatal(err)
		}
		if err := m.Validate(again(bad, form)); err == nil {
			t.Fatal("bytes that are no elements are valid")
		}
	}
}

func BenchmarkValidateForm(b *testing.B) {
	m := model(b, validated["flat"])
	req := again(inputs(in("A", infer.Int64, 24, 1, 3), in("B", infer.Bool, 1, 1)), &infer.Form{})
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Validate(req); err != nil {
			b.Fatal(err)
		}
	}
}
