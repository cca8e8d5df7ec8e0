package variants

import (
	"errors"
	"flag"
	"slices"
	"testing"
)

// Those that ask run with each variant, parts of tests included; the others once.
func TestRun(t *testing.T) {
	was := flag.Lookup("test.run").Value.String()
	t.Cleanup(func() {
		if err := flag.Set("test.run", was); err != nil {
			t.Error(err)
		}
	})
	o := New("a", "b", "c")
	var got []string
	code := o.run(func() int {
		if len(got) == 0 {
			t.Run("part", func(t *testing.T) { got = append(got, o.Now(t)) })
			return 0
		}
		got = append(got, o.Now(t), flag.Lookup("test.run").Value.String())
		return 0
	}, func() error { return nil })
	want := []string{"a", "b", "^(TestRun)$", "c", "^(TestRun)$"}
	if code != 0 || !slices.Equal(got, want) {
		t.Errorf("got %d, %q, want 0, %q", code, got, want)
	}
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		code  int
		after error
		want  int
	}{
		"none asks":           {0, nil, 0},
		"the first run fails": {3, nil, 3},
		"something is left":   {0, errors.New("left"), 1},
	} {
		o, runs := New(false, true), 0
		got := o.run(func() int {
			runs++
			return c.code
		}, func() error { return c.after })
		if got != c.want || runs != 1 {
			t.Errorf("%s: got %d after %d runs, want %d after 1", name, got, runs, c.want)
		}
	}
}
