package httpapi

import "testing"

// Naming the load in an answer allocates nothing.
func TestReportLoadAllocatesNothing(t *testing.T) {
	a, err := NewAPI(APIConfig{}, APIDeps{Load: func(asked string) string {
		if asked == "text" {
			return "TEXT eps=1"
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	var reply Reply
	for asked, want := range map[string]int{"": 0, "text": 1} {
		x := a.exchange(&reply)
		call := &Call{Header: named{"Endpoint-Load-Metrics-Format": asked}}
		a.reportLoad(x, call)
		if len(reply.Fields) != 0 {
			t.Errorf("a call that was not let in was told %v", reply.Fields)
		}
		x.m.req.Envelope = &x.m.env
		n := testing.AllocsPerRun(100, func() {
			reply.reset()
			a.reportLoad(x, call)
		})
		if n != 0 || len(reply.Fields) != want {
			t.Errorf("asked %q: %v allocations, fields %v", asked, n, reply.Fields)
		}
		reply.reset()
	}
}

// named are headers by their canonical names.
type named map[string]string

func (f named) Get(name string) string { return f[name] }

func (f named) Count(name string) int { return header(f).Count(name) }

func (f named) Each(each func(name, value string) bool) {
	for name, value := range f {
		if !each(name, value) {
			return
		}
	}
}
