package client

import (
	"strings"
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

// A request may say much about itself. What its descriptor took goes back to the arena when
// it has its answer, or nobody else's inputs would have room until the model is unloaded.
func TestLargeDescriptorGoesBack(t *testing.T) {
	w := start(t, Config{Local: []LocalWorker{as("worker")}})
	v := load(t, w, spec(2, nil))
	defer unload(t, v)
	long := strings.Repeat("x", 4<<20)
	for _, change := range []func(q *infer.Request){
		func(q *infer.Request) { q.ID = long },
		func(q *infer.Request) {
			q.Params = infer.Params{{Name: "a", Value: infer.Value{Kind: infer.KindString, Str: long}}}
		},
		func(*infer.Request) {},
	} {
		for i := range 2 {
			b, results := newBatch(1, 4)
			change(b.Requests[0])
			v.Executor(i).Execute(b)
			r := wait(t, results)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			r.Memory.Release()
		}
		if n := w.Memory().InUse(); n > 1<<20 {
			t.Errorf("%d bytes of the request arena are in use though nothing is executed", n)
		}
	}
}
