package client

import (
	"slices"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/workers/wire"
)

// inputsRead gives back what a freed batch has of the arena for its inputs; what its scheduler
// has for them is the scheduler's. An error says what the worker did wrong.
func (e *executor) inputsRead(b *infer.Batch, o *open) error {
	switch {
	case o == nil:
		return infer.Errorf(infer.Internal, "the inputs of batch %d are said to be read, and it was not freed", b.ID)
	case o.read:
		return infer.Errorf(infer.Internal, "the inputs of batch %d are said to be read twice", b.ID)
	}
	o.read = true
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.opens.all, o) { // else it has ended, and its copies with it
		for _, c := range o.copies {
			e.arena.Free(c)
		}
		o.copies = nil
	}
	return nil
}

// checkRead says what is wrong with a result of a batch whose inputs are read: they may be
// others' already, so nothing is read of them. o is nil where the batch was not freed before.
func checkRead(w *wire.Result, o *open) error {
	if !w.InputsRead && (o == nil || !o.read) {
		return nil
	}
	names := namesInput(w.Outputs)
	for i := range w.Responses {
		names = names || namesInput(w.Responses[i].Outputs)
	}
	if names {
		return infer.Errorf(infer.Internal, "an answer is said to be an input of batch %d, whose inputs are read", w.ID)
	}
	return nil
}

func namesInput(outputs []wire.Output) bool {
	return slices.ContainsFunc(outputs, func(o wire.Output) bool {
		_, ok := o.Data.Input()
		return ok
	})
}
