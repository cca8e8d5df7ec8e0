package workers

import (
	"time"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// Again takes the batch of an execution through decoding, preparing and answering once
// more, without sending the result.
func Again(b backend.Batch, out []infer.Tensor) {
	x := b.(*execution)
	if err := again(x, out); err != nil {
		panic(err)
	}
}

func again(x *execution, out []infer.Tensor) error {
	x.encoded = wire.AppendBatch(x.encoded[:0], &x.batch)
	if err := wire.DecodeBatch(x.encoded, &x.batch); err != nil {
		return err
	}
	if err := x.prepare(); err != nil {
		return err
	}
	mem, err := x.Alloc(int64(len(x.inputs[0].Data)))
	if err != nil {
		return err
	}
	out[0].Data = mem
	x.InputDone()
	x.InferDone()
	err = x.Outputs(out)
	x.encoded = wire.AppendResult(x.encoded[:0], &x.final.result)
	x.release()
	return err
}

// Look looks at a kept batch as keepWatch will so much later.
func Look(o backend.Open, after time.Duration) {
	k := o.(*keptBatch)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.look(infer.Now()+int64(after), k.x.inst.worker.kept.silence)
}

// LookWhenDue looks at a kept batch at the moment when request i was silent for too long.
func LookWhenDue(o backend.Open, i int) {
	k := o.(*keptBatch)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.look(k.watch[i].heard+int64(k.x.inst.worker.kept.silence), k.x.inst.worker.kept.silence)
}
