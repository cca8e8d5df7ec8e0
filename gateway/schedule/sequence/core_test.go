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

// The timer asks for what has waited too long before anything else: a slot that has become
// free by then goes to the sequence that waits for it.
func TestSlotOfTheLastMoment(t *testing.T) {
	m := newMachine(rules{slots: 1, instances: 1, limit: 10, idle: 4, wait: 5})
	for i, name := range []string{"a", "b"} {
		q := &infer.Request{Correlation: infer.Correlation{ID: uint64(i + 1)}, SequenceStart: true}
		m.add(&queue.Entry{Rows: 1, Owner: q}, name)
		m.decide()
	}
	m.core.Done(0, m.ended(0))
	m.decide()
	if e := m.core.Expire(5); e != nil {
		t.Errorf("%s is refused: %v", m.names[e], m.core.Verdict(e))
	}
	if m.now = 5; m.core.Pending() != 1 {
		t.Fatalf("%d wait, want b", m.core.Pending())
	}
	if m.decide(); len(m.running[0]) != 1 || m.names[m.running[0][0]] != "b" {
		t.Errorf("instance 0 has %v, want b", m.running[0])
	}
}
