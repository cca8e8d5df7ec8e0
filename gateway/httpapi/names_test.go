package httpapi

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"strings"
	"testing"
)

// manyNames is a document with n parameters, each written by form; where says where.
func manyNames(where string, n int, form string) []byte {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, form, i)
	}
	in := `"inputs":[{"name":"I","datatype":"FP32","shape":[1],"data":[1]}]`
	if where == "outputs" {
		return []byte(`{` + in + `,"outputs":[{"name":"O","parameters":{"a":1}},{"name":"P","parameters":{` + b.String() + `}}]}`)
	}
	return []byte(`{"parameters":{` + b.String() + `},` + in + `}`)
}

// TestManyNamesAreRefusedCheaply counts what the refusal of a megabyte of names costs: no
// allocation for a name, and no comparison with all the others.
func TestManyNamesAreRefusedCheaply(t *testing.T) {
	for _, c := range []struct{ name, where, form, want string }{
		{"unknown", "request", `"k%06d":1`, "more than 1024 parameters"},
		{"of an output", "outputs", `"k%06d":1`, "more than 1024 parameters"},
		{"reserved", "request", `"triton_%06d":1`, "are reserved for Triton usage"},
		{"of no type", "request", `"k%06d":null`, "has invalid type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := manyNames(c.where, 100_000, c.form)
			d := &decoder{}
			allocs := testing.AllocsPerRun(2, func() {
				d.reset()
				if err := d.document(doc); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v, want %s", err, c.want)
				}
			})
			if allocs > 200 {
				t.Errorf("%v allocations for %d names", allocs, 100_000)
			}
			list := d.params
			if c.where == "outputs" {
				list = d.outParams[1:]
			}
			if want := min(len(list), maxParams); want > fewNames && d.names.count != want {
				t.Errorf("%d of %d names can be found", d.names.count, want)
			}
		})
	}
}

// TestManyFaultsAreRefusedCheaply counts allocations where each few bytes of a body are wrong
// in themselves: of the first one an error is made.
func TestManyFaultsAreRefusedCheaply(t *testing.T) {
	const n = 100_000
	list := func(s string) string { return strings.Repeat(s+",", n-1) + s }
	in := `{"name":"I","datatype":"FP32","shape":[1],"data":[1]}`
	fp16 := modelInputs{{Name: "I", Datatype: "FP16", Shape: []int64{1}}}
	two := modelInputs{{Name: "I", Datatype: "FP32", Shape: []int64{2}}}
	one := modelInputs{{Name: "I", Datatype: "FP32", Shape: []int64{1}}}
	for _, c := range []struct {
		name, doc string
		inputs    modelInputs // of a generate call
		bytes     uint64      // for each fault
		want      string
	}{
		{"inputs", `{"inputs":[` + list(`{}`) + `]}`, nil, 64, "no field is set"},
		{"outputs", `{"inputs":[` + in + `],"outputs":[` + list(`{"name":"O"}`) + `]}`, nil, 64, "more than 4096 outputs"},
		{"dimensions", `{"inputs":[{"name":"I","datatype":"FP32","data":[1],"shape":[` + list(`-1`) + `]}]}`, nil, 64, "non-unsigned-integer"},
		{"rank", `{"inputs":[{"name":"I","datatype":"FP32","data":[1],"shape":[` + list(`1`) + `]}]}`, nil, 16, "dimensions"},
		{"same input", `{"id":"` + strings.Repeat("x", 1000) + `",` + list(`"I":1`) + `}`, one, 64, "already exists in request"},
		{"shape", `{` + list(`"I":1`) + `}`, two, 64, "can not convert"},
		{"no JSON form", `{` + list(`"I":1`) + `}`, fp16, 64, "via JSON is not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &decoder{}
			read := func() {
				d.reset()
				err := error(nil)
				if doc := []byte(c.doc); c.inputs != nil {
					err = d.generation(doc, c.inputs)
				} else {
					err = d.document(doc)
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %.200v, want %s", err, c.want)
				}
			}
			read()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			read()
			runtime.ReadMemStats(&after)
			if took, most := after.TotalAlloc-before.TotalAlloc, uint64(len(c.doc))+n*c.bytes+4<<20; took > most {
				t.Errorf("%d bytes were allocated for %d faults, want %d at most", took, n, most)
			}
		})
	}
}

// TestNamesStandNearTheirPlace sees that a full table is looked through in few steps.
func TestNamesStandNearTheirPlace(t *testing.T) {
	d := &decoder{}
	d.reset()
	if err := d.document(manyNames("request", maxParams, `"k%06d":1`)); err != nil {
		t.Fatal(err)
	}
	if d.names.has(d.params, 0, false, d.text, []byte("another")) {
		t.Error("found what is not there")
	}
	steps := 0
	for i, at := range d.names.slots {
		if at == 0 {
			continue
		}
		p := d.params[at-1]
		home := maphash.Bytes(d.names.seed, d.text[p.name.from:p.name.to]) % nameSlots
		steps += (i - int(home) + nameSlots) % nameSlots
	}
	if d.names.count != maxParams || steps > 4*maxParams {
		t.Errorf("%d names stand %d steps from their places", d.names.count, steps)
	}
}

// TestFirstOfManyNamesCounts sees that of one name the first counts, wherever it stands, and
// that no output's names are taken for another's.
func TestFirstOfManyNamesCounts(t *testing.T) {
	for _, n := range []int{1, fewNames, fewNames + 1, 500, maxParams} {
		form := `"k%06[1]d":%[1]d,"k000000":"again","k%06[1]d":true`
		d := &decoder{}
		for _, where := range []string{"request", "outputs", "request"} {
			if where == "outputs" && n == maxParams {
				continue // one more stands before them
			}
			d.reset()
			if err := d.document(manyNames(where, n, form)); err != nil {
				t.Fatalf("%d in %s: %v", n, where, err)
			}
			list := d.params
			if where == "outputs" {
				list = d.outParams[1:]
			}
			if len(list) != n {
				t.Fatalf("%d in %s: %d parameters", n, where, len(list))
			}
			for i := range list {
				if p := list[i].of(string(d.text)); p.Name != fmt.Sprintf("k%06d", i) || p.Value.Int != int64(i) {
					t.Fatalf("%d in %s: parameter %d is %+v", n, where, i, p)
				}
			}
		}
	}
	twice := `{"inputs":[],"outputs":[{"name":"O","parameters":{` + names20 + `}},{"name":"P","parameters":{` + names20 + `}}]}`
	d := &decoder{}
	d.reset()
	if err := d.document([]byte(twice)); err != nil || len(d.outParams) != 40 {
		t.Errorf("two outputs with 20 parameters each have %d, %v", len(d.outParams), err)
	}
}

const names20 = `"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1,"m":1,"n":1,"o":1,"p":1,"q":1,"r":1,"s":1,"t":1`
