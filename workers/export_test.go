package workers

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/backend"
	"github.com/sluice-serve/sluice/workers/wire"
)

// Again takes the batch of an execution through decoding, preparing and answering once
// more, without sending the result.
func Again(b backend.Batch, out []infer.Tensor) {
	x := b.(*execution)
	t := x.inst.transport.(*mailbox)
	if err := again(x, t, out); err != nil {
		panic(err)
	}
}

func again(x *execution, t *mailbox, out []infer.Tensor) error {
	t.encoded = wire.AppendBatch(t.encoded[:0], &x.batch)
	if err := wire.DecodeBatch(t.encoded, &x.batch); err != nil {
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
	t.encoded = wire.AppendResult(t.encoded[:0], &x.final.result)
	x.release()
	return err
}
