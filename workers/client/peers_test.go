package client

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-serve/sluice/infer"
)

// inRegions says whether a version's last batch named its inputs in regions, which is without a copy.
func inRegions(v *Version) bool {
	e := v.executors[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, in := range e.batch.Inputs {
		for _, s := range in.Segments {
			if _, _, ok := s.Region(); !ok {
				return false
			}
		}
	}
	return len(e.batch.Inputs) > 0
}

// handOn executes a batch whose inputs are another's answers.
func handOn(t *testing.T, v *Version, from *infer.Result, columns int) {
	t.Helper()
	b, results := newBatch(1, columns)
	for i := range b.Inputs {
		b.Inputs[i].Segments[0], b.Requests[0].Inputs[i].Data = from.Outputs[i].Data, from.Outputs[i].Data
	}
	v.Executor(0).Execute(b)
	checkEcho(t, b, wait(t, results))
}

// What one process answers another one reads where it lies, also after the first has ended; when it is
// there again it answers into other memory.
func TestAnswersOfOtherProcesses(t *testing.T) {
	const columns = 8 << 10 // large enough to be named, and too small to be passed on as an input
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": ModelProcess}})
	up := make(chan bool, 8)
	s := named("a", "")
	s.Changed = func(_ int, is bool) { up <- is }
	a, b := load(t, w, s), load(t, w, named("b", ""))
	defer unload(t, b)
	defer unload(t, a)
	answer := func() *infer.Result {
		t.Helper()
		batch, results := newBatch(1, columns)
		a.Executor(0).Execute(batch)
		r := wait(t, results)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		return r
	}
	passesOn := func(r *infer.Result) {
		t.Helper()
		if !w.Layout().Holds(r.Outputs[0].Data) {
			t.Error("schedulers copy it")
		}
		eventually(t, "it is not copied", func() bool { handOn(t, b, r, columns); return inRegions(b) })
		before := w.Memory().InUse()
		handOn(t, b, r, columns)
		if now := w.Memory().InUse(); now != before || !inRegions(b) {
			t.Errorf("%d bytes were in use, and %d are", before, now)
		}
	}
	first := answer()
	passesOn(first)
	if err := unix.Kill(pids(w)["cpu/identity/a"], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if <-up || !<-up {
		t.Fatal("a is not back")
	}
	handOn(t, b, first, columns) // copied, or still read where it lies
	second := answer()
	passesOn(second)
	handOn(t, b, first, columns)
	first.Memory.Release()
	second.Memory.Release()
}

// Batches of several requests name each one's memory; integers and what is small are copied.
func TestWhatIsNamedElsewhere(t *testing.T) {
	const columns = 8 << 10 // large enough to be named, and too small to be passed on as an input
	w := start(t, Config{Local: []LocalWorker{as("worker")}, Processes: map[string]Sharing{"": ModelProcess}})
	a, b := load(t, w, named("a", "")), load(t, w, named("b", ""))
	defer unload(t, b)
	defer unload(t, a)
	batch, results := newBatch(2, columns)
	a.Executor(0).Execute(batch)
	r := wait(t, results)
	eventually(t, "both are named", func() bool {
		next, got := newBatch(2, columns)
		for i := range next.Inputs {
			data := r.Outputs[i].Data
			next.Inputs[i].Segments = [][]byte{data[:len(data)/2], data[len(data)/2:]}
		}
		b.Executor(0).Execute(next)
		last := wait(t, got)
		for i, one := range answers(t, next, last) {
			for k := range next.Inputs {
				if one.Err != nil || !bytes.Equal(one.Response.Outputs[k].Data, next.Inputs[k].Segments[i]) {
					t.Fatalf("request %d: %v", i, one.Err)
				}
			}
		}
		last.Memory.Release()
		return inRegions(b)
	})
	for name, c := range map[string]struct {
		datatype infer.Datatype
		segments [][]byte
	}{
		"integers":              {infer.Int32, [][]byte{r.Outputs[0].Data[:4*columns]}},
		"a part of a request":   {infer.FP32, [][]byte{r.Outputs[0].Data[:columns], r.Outputs[0].Data[columns : 4*columns]}},
		"of no worker's memory": {infer.FP32, [][]byte{make([]byte, 4*columns)}},
	} {
		in := infer.BatchInput{Datatype: c.datatype, Shape: []int64{1, columns}, Segments: c.segments}
		one := &infer.Batch{Rows: 1, Requests: []*infer.Request{{Rows: 1}}}
		if _, ok := newPeers(w, &session{}).name(one, &in, 0); ok {
			t.Errorf("%s: not copied", name)
		}
	}
	r.Memory.Release()
}
