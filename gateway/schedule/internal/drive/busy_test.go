package drive_test

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-serve/sluice/gateway/schedule/dynamic"
)

// Busy counts instances with a batch, not the batches that wait.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem, seen := &fake{}, newMemory(1<<20), &counts{}
		s := batcher(t, dynamic.Config{}, deps(mem, seen, f))
		busy := s.Busy
		check(t, "busy at first", busy(), 0)
		one, two := start(t.Context(), s, request("a", 1)), start(t.Context(), s, request("b", 1))
		synctest.Wait()
		check(t, "busy with one of two", busy(), 1)
		f.answer(t)
		synctest.Wait()
		f.answer(t)
		check(t, "error", one.wait(t), nil)
		check(t, "error", two.wait(t), nil)
		synctest.Wait()
		check(t, "busy at last", busy(), 0)
	})
}
