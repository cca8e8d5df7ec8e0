package sequence

import (
	"testing"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
	"github.com/sluice-serve/sluice/infer"
)

// A caller that leaves a sequence which has ended already doesn't change what the others
// hear.
func TestFirstFateStands(t *testing.T) {
	m := newMachine(rules{slots: 1, instances: 1, limit: 10})
	m.core.Hold(0, true)
	var all []*queue.Entry
	for i, name := range []string{"a", "b", "c"} {
		r := &infer.Request{Correlation: infer.Correlation{ID: 1}, SequenceStart: i == 0}
		e := &queue.Entry{Rows: 1, Owner: r}
		if i == 0 {
			e.Deadline = 5
		}
		m.add(e, name)
		all = append(all, e)
	}
	if e := m.core.Expire(5); e != all[0] {
		t.Fatalf("%v expired, want a", e)
	}
	m.core.Remove(all[1])
	e := m.core.Expire(5)
	if e != all[2] || infer.ReasonOf(m.core.Verdict(e)) != infer.ReasonQueueTimeout {
		t.Errorf("%v hears %v, want c and a timeout", e, m.core.Verdict(all[2]))
	}
	if n := m.core.Pending(); n != 0 {
		t.Errorf("%d are pending", n)
	}
}
