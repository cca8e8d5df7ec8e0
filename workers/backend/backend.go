// Package backend is the interface between a worker and what executes models: load a
// version, make instances of it on devices, execute batches. Every backend passes
// backendtest.Run.
//
// A worker calls Describe and Load of one backend from several goroutines at once. An
// Instance is used by one goroutine, which is locked to its thread for the instance's
// life, from its making (NewInstance) to its Close.
package backend

import (
	"context"
	"os"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Factory makes a backend. The options are those of --backend-config for it.
type Factory func(options map[string]string) (Backend, error)

// Info is what a backend says of itself. The gateway knows no more of it: whatever is
// special about a backend, its file names and platforms among it, stands here.
// Source: message Backend, proto/worker/worker.proto.
type Info struct {
	Version     string // of the library underneath; "" where there is none
	GPU         bool   // instances on GPUs are possible in this process
	Unavailable string // why nothing can be loaded; "" where it can
	// OpenRequests is how many requests of an instance may be open in batches that it kept
	// (Batch.Keep) when it takes its next one; 0: it keeps none. At most MaxOpenRequests.
	OpenRequests int

	WholeBatches      bool // the worker does not execute a batch's requests one by one
	Ragged            bool // it computes batch_input and cuts batch_output itself
	UnbatchedOptional bool // inputs may be optional in models without a batch dimension alone
	RequestContext    bool // requests have what ContextOf tells
	Simultaneous      bool // a model's NewInstance may be called by several goroutines at a time
	Patches           bool // Describe is asked for configs whose tensors are complete, too
	OwnProcess        bool // it runs others' native code: a gateway has its models in a process of their own

	Placements []*worker.Placement   // kinds of instances, the preferred first; nil: CPU, and GPU as GPU says
	Memory     []worker.MemoryKind   // where tensors may lie; nil: host memory
	Formats    []*worker.ModelFormat // model files; nil: it reads none, or the config says which
	Runtimes   []*worker.Runtime     // files of other backends that it runs
	Engine     *worker.Engine        // the library underneath, also where it is missing; nil: it needs none
}

// Message is Info as a worker says it in Hello. What it points at is shared.
func (i Info) Message(name string) *worker.Backend {
	return &worker.Backend{Name: name, Version: i.Version, Gpu: i.GPU, Unavailable: i.Unavailable, OpenRequests: uint32(max(i.OpenRequests, 0)),
		WholeBatches: i.WholeBatches, Ragged: i.Ragged, UnbatchedOptional: i.UnbatchedOptional, Patches: i.Patches,
		OwnProcess: i.OwnProcess, Placements: i.Placements, Memory: i.Memory, Formats: i.Formats, Runtimes: i.Runtimes, Engine: i.Engine}
}

// MaxOpenRequests bounds Info.OpenRequests.
const MaxOpenRequests = 1 << 16

// Backend loads model versions.
type Backend interface {
	Info() Info
	// Describe reads the tensors that a model file declares, and patches the config.
	// Unsupported where the backend's files don't tell.
	Describe(ctx context.Context, spec Spec) (*Description, error)
	// Load prepares a model version; instances follow. Errors are infer errors whose
	// text helps the model's owner and names files relative to the model's folder.
	Load(ctx context.Context, spec Spec) (Model, error)
	// Close frees what the backend holds; no model is loaded any more.
	Close() error
}

// Spec is one model version to be loaded.
type Spec struct {
	Name      string
	Version   int64
	ModelDir  string // <repository>/<model>
	ModelFile string // the version's model file or folder; it may not exist
	Config    *modelconfig.ModelConfig
	Instances int // how many instances will be made of it here
	// BackendFile is the absolute path of the file that makes the config's backend, where
	// this backend runs it: see Info.Runtimes. "" where the config names this backend.
	BackendFile string
	// Inspect says, for Describe, that nothing of the model's may be executed: somebody wants to know
	// what a load would meet.
	Inspect bool
	// Gateway is the model's own way to the gateway; nil: that takes no calls, or it is
	// Describe's.
	Gateway Gateway
	// Arenas is the memory that batches come and go in, where the gateway shares it; nil: it does not.
	Arenas Arenas
}

// Arenas are the two memories that a gateway of this host shares with its worker. A backend
// whose models run in processes of their own may hand them on, so that tensors need no copy
// there: to map the requests' privately, and the answers' writable. Its methods may be called
// by any goroutine as long as the model is loaded. Source: package workers/shm.
type Arenas interface {
	// Files duplicates the descriptors of both; the caller closes them.
	Files() (requests, answers *os.File, err error)
	// Locate says where data lies: an input, or memory from Alloc. ok is false where it
	// lies in neither.
	Locate(data []byte) (answers bool, offset int64, ok bool)
}

// TensorInfo is a tensor as a model file declares it; -1 is a dimension of any size.
type TensorInfo struct {
	Name     string
	Datatype infer.Datatype
	Shape    []int64
	Optional bool
}

// Description is what a model file declares of itself.
type Description struct {
	Inputs, Outputs []TensorInfo
	// Patch is what the backend says of the config beside; nil: nothing.
	Patch *worker.ConfigPatch
	// Findings, where Spec.Inspect is set, are why a load would fail, and Remarks what the model is
	// made of and what a load would do.
	Findings, Remarks []string
}

// Model is a loaded model version.
type Model interface {
	NewInstance(ctx context.Context, spec InstanceSpec) (Instance, error)
	// Close frees the model; its instances are closed before.
	Close() error
}

// InstanceSpec says where an instance lives.
type InstanceSpec struct {
	Name     string
	GPU      bool
	Device   int // CUDA ordinal as this process sees it
	Profiles []string
}

// Instance executes batches, one at a time.
type Instance interface {
	// Execute answers every request of b, through b's methods, before it returns, unless
	// b was kept. Where it returns an error, the requests that have no final answer get it.
	// The reason worker_lost (also of Open.Fail, where every open request of the batch fails so)
	// says that the instance has lost what it had, states of sequences among it: where no
	// request of the batch had an answer, the gateway has them executed once more.
	Execute(b Batch) error
	// Fault is why it can't execute for a time, as an instance whose process is being started again;
	// nil: it can. The gateway hears of it within a second, and gives it no batches. Any goroutine
	// may call it, until Close has returned.
	Fault() error
	// Close comes when no batch is kept any more. Nothing of the instance's may use one
	// when it returns.
	Close() error
}

// Asked is an Instance that says itself whether it is ready.
type Asked interface {
	Instance
	// AsksReady says that Ready may have something to say. It is asked once, when the instance was made.
	AsksReady() bool
	// Ready says why the instance is not ready; nil: it is. It may take seconds. Any goroutine may call
	// it, also while Execute runs, until Close has returned.
	Ready(ctx context.Context) error
}

// Batch is one execution as a backend sees it. Inputs are read-only and valid until
// Execute returns, or longer where the batch is kept. Its methods may be called by Execute's
// goroutine alone.
type Batch interface {
	// Rows is the sum of the requests' rows; 0 for a model without batch dimension.
	Rows() int
	// Inputs are contiguous tensors of the whole batch. See Memory for those on a device.
	Inputs() []infer.Tensor
	// Requests are the batch's requests in the order of their rows.
	Requests() []Request

	// Alloc takes n bytes of the response arena, 64-byte aligned. They belong to the
	// batch, and are freed when Execute has returned and every answer that uses them
	// was read. Answers of which there is no end had better not come from it: what
	// Respond copies is freed as soon as that answer was read.
	Alloc(n int64) ([]byte, error)
	// AllocOutput is Alloc for the data of one output of the whole batch. Where one request
	// is alone in its batch and wants that output in its client's memory, it is that, 8-byte
	// aligned: the client sees and may change it at any time, so that a backend which reads
	// it again must not rely on what it reads. An error is that there is not enough of it.
	AllocOutput(name string, n int64) ([]byte, error)
	// Passes says that an output of the whole batch may be an input as it is, without a copy:
	// data is all of it.
	Passes(output string, data []byte) bool
	// Outputs answers all requests with tensors of the whole batch, rows first. Data
	// in memory from Alloc or AllocOutput is not copied, nor is an input that Passes; other data
	// is before it returns. It is the last answer.
	Outputs(outputs []infer.Tensor) error
	// Respond answers request i; final says that no other answer follows. The rules
	// for data are those of Outputs.
	Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error
	// Fail ends request i with an error.
	Fail(i int, err error) error
	// RespondError answers request i of a decoupled model with an error behind which other answers may come. open
	// is false where that is not possible: then it was the last one, as with Fail.
	RespondError(i int, err error) (open bool, fault error)
	// Repeat ends this execution of request i, which is then executed again: models with
	// iterative_sequence. outputs are its new states, if the model has implicit state;
	// what the client is to have before goes through Respond.
	Repeat(i int, outputs []infer.Tensor) error

	// InputDone and InferDone mark the ends of the phases "compute input" and
	// "compute infer" for statistics; the rest until Execute returns is "output".
	InputDone()
	InferDone()

	// Keep keeps the batch when Execute returns: its requests without final answer stay
	// open, and are answered through the Open alone, from now on. An error of Execute goes
	// to those that are open then. The instance gets its next batch as soon as this one's
	// requests have room among its open ones (Info.OpenRequests), and until then waits for
	// others to be answered; one of a model with a sequence batcher gets it when this one
	// has ended. It is an error where the backend declares no open requests, where all are
	// answered, and the second time.
	Keep() (Open, error)

	Memory
}

// Open is a batch that was kept. Its methods may be called by any goroutine, also while
// Execute runs, and none of them waits for another request's answer. It ends with the final
// answer of its last request; then its methods fail, and its inputs are gone. A request of
// which nothing is heard for too long (the worker's open request timeout) is failed by the
// worker, its Watch is told before, and what is answered to it after that is dropped.
type Open interface {
	// Requests are all of the batch. They are valid until the batch ends, and their
	// inputs until then or Release.
	Requests() []Request
	// Alloc is that of Batch: what it gives is freed when the batch has ended.
	Alloc(n int64) ([]byte, error)
	// Respond answers request i; final says that no other answer follows. Data in memory
	// from Alloc is not copied, other data is before it returns. After an error the request
	// is as open as before.
	Respond(i int, outputs []infer.Tensor, params infer.Params, final bool) error
	// Fail ends request i with an error.
	Fail(i int, err error) error
	// RespondError is that of Batch.
	RespondError(i int, err error) (open bool, fault error)
	// InferDone marks the end of the phase "compute infer" of request i, until its answers; the
	// last call before an answer counts. Without one the phase lasts until the answer. That of
	// the batch ends with the last of its requests.
	InferDone(i int)
	// Watch has f called, on a goroutine of its own, when request i's own timeout has
	// passed (the reason of cause is deadline; the request goes on), and when it is
	// cancelled (cancelled) or failed by the worker (none), which is the last call. f is not
	// called when the request has its final answer, which may come while it runs. It
	// replaces an f that was given before, and is called soon where the request is
	// cancelled already.
	Watch(i int, f func(cause error))
	// Release gives the inputs of all requests back before their answers: they may not be
	// read any more. The gateway keeps its own, to have the requests executed again if this
	// worker is lost.
	Release()
	// ReleaseAll is Release, and has the gateway give back the inputs' memory as well, as soon
	// as the instance is free: what a client sent is gone before its answer. So a request that
	// was not answered when the worker is lost fails, and none may ask for Repeat.
	ReleaseAll()

	Memory
}

// Request is one request of a batch.
type Request interface {
	ID() string
	Rows() int
	Params() infer.Params
	// Correlation is the sequence's ID as the client sent it. Callers of several tenants may
	// have sequences of the same ID at the same time, so that it is no key of a state; but no
	// two iterative requests have one ID at a time.
	Correlation() (c infer.Correlation, start, end bool)
	// Wants says whether the output was asked for.
	Wants(output string) bool
	// Cancelled says that nobody waits for its answer any more. It is cheap, and may
	// be called from any goroutine until Execute returns.
	Cancelled() bool
	// Inputs are the request's own tensors, views on the batch's rows.
	Inputs() []infer.Tensor
	// Gateway is the way to the gateway for this request; nil: that takes no calls.
	Gateway() Gateway
}
