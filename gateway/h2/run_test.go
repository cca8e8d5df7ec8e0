package h2

import "testing"

// quickCall is a call of which only Quick is asked.
type quickCall struct {
	Call
	quick bool
}

func (c *quickCall) Quick() bool { return c.quick }

// The reading goroutine starts what takes it little: small messages, and quick ones that are
// not very large.
func TestBegins(t *testing.T) {
	for _, tc := range []struct {
		length                      int64
		complete, compressed, quick bool
		want                        bool
	}{
		{0, true, false, false, true},
		{onReader, true, false, false, true},
		{onReader + 1, true, false, false, false},
		{onReader + 1, true, false, true, true},
		{quickOnReader, true, false, true, true},
		{quickOnReader + 1, true, false, true, false},
		{100, false, false, true, false},
		{100, true, true, true, false},
		{onReader + 1, true, true, true, false},
	} {
		st := &Stream{call: &quickCall{quick: tc.quick}}
		st.in.length, st.in.complete, st.in.compressed = tc.length, tc.complete, tc.compressed
		if got := st.begins(); got != tc.want {
			t.Errorf("%+v: begins %v", tc, got)
		}
	}
	st := &Stream{}
	if st.in.complete = true; st.begins() {
		t.Error("a service's call begins on the reading goroutine")
	}
}
