package drive

import "github.com/sluice-serve/sluice/infer"

// traced ends what spans tell of the batch, before any of its callers has its answer.
func (b *batch) traced(res *infer.Result, now int64) {
	defer b.d.caught("a trace met a fault")
	t := b.trace
	t.ID, t.Attempt, t.Requests, t.Rows = b.ID, b.Attempt, len(b.Requests)-b.nulls, b.executedRows()
	t.Started, t.Ended, t.Compute, t.Err = b.started, now, res.Compute, res.Err
	t.Instance, t.Worker = b.d.deps.Executors[b.instance].Place()
	t.Done()
}
