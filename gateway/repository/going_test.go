package repository

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Each tells of all versions that serve, and of ensembles whether a step has sequences.
func TestGoing(t *testing.T) {
	files := map[string]string{"plain/config.pbtxt": identity, "plain/1/": "", "stateful/config.pbtxt": identity + "sequence_batching { }",
		"stateful/1/": "", "over/config.pbtxt": passing("stateful", "-1"), "over/1/": "", "twice/config.pbtxt": over("over"), "twice/1/": "",
		"harmless/config.pbtxt": passing("plain", "-1"), "harmless/1/": ""}
	r, err := load(t, &fakeWorkers{}, Config{}, files)
	if err != nil {
		t.Fatal(err)
	}
	held, err := r.Acquire(t.Context(), "plain", "")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	var got []string
	r.Each(func(m *Model) {
		got = append(got, fmt.Sprintf("%s/%d %v %+v", m.Name, m.Version, r.Stateful(m), m.Going()))
	})
	slices.Sort(got)
	want := []string{"harmless/1 false {Waiting:0 Inflight:0 Busy:0}", "over/1 true {Waiting:0 Inflight:0 Busy:0}",
		"plain/1 false {Waiting:0 Inflight:1 Busy:0}", "stateful/1 true {Waiting:0 Inflight:0 Busy:0}", "twice/1 true {Waiting:0 Inflight:0 Busy:0}"}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
