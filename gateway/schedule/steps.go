package schedule

import (
	"context"

	"github.com/sluice-serve/sluice/infer"
)

// Steps runs the models that an ensemble is made of. It is the way up to the pipeline,
// which gateway joins to the schedulers below it.
type Steps interface {
	// Pin holds a model version until its Release. Errors as repository.Acquire.
	Pin(ctx context.Context, model *StepModel) (Pinned, error)
	// Call runs req on a model that this Steps pinned: validation, cache, queue, and its
	// statistics. send is called on this goroutine. Once it has returned without an error
	// nothing of req is read any more but its memory, by who holds it.
	Call(ctx context.Context, m Pinned, req *infer.Request, send infer.SendFunc) error
	// Bring reads a tensor in a client's memory, as infer.Regions.ReadPlace.
	Bring(ctx context.Context, p infer.Place) (*infer.Buffer, error)
}

// StepModel names the model of a step.
// Source: message ModelEnsembling.Step, proto/modelconfig/model_config.proto.
type StepModel struct {
	Name      string
	Namespace string // the repository; "": the ensemble's own first
	Version   int64  // negative: the highest that is ready
}

// Pinned is a model version that stays loaded until Release.
type Pinned interface {
	// Batched says that the first dimension of every tensor is the batch.
	Batched() bool
	// Decoupled says that one request may have any number of responses.
	Decoupled() bool
	// Fit is the shape in which a tensor is given to one of the model's inputs. batched
	// says that the model which it comes from has a batch dimension; where only one of
	// the two has it, a batch of one is put in front or taken away if the rest then fits.
	// It may return shape itself, and never writes to it.
	Fit(input string, batched bool, shape []int64) []int64
	// Device names the device memory in which all of its instances take tensors and may leave
	// outputs for each other's; "": there is none.
	Device() string
	// Reaches says that Device is not "", and that all instances read a tensor in a client's
	// memory where it lies.
	Reaches(p infer.Place) bool
	Release()
}

// Fit is the shape in which a tensor of that shape is taken where dims (without batch,
// -1: any) are configured. Where only one side has a batch dimension, a batch of one is
// put in front, or taken away, if dims then match; otherwise it is shape itself, and
// validation says what is wrong with it. shape is not written to.
// Source: EnsembleContext::ReshapeTensorDims of the original.
func Fit(dims []int64, batching, batched bool, shape []int64) []int64 {
	switch {
	case batching == batched:
	case batching && Match(dims, shape):
		return append([]int64{1}, shape...)
	case batched && !Match(dims, shape) && len(shape) > 0 && shape[0] == 1:
		return shape[1:]
	}
	return shape
}

// Match says that two shapes are equal but for dimensions that are -1 in one of them.
// Source: CompareDimsWithWildcard of the original.
func Match(a, b []int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] && a[i] != -1 && b[i] != -1 {
			return false
		}
	}
	return true
}
