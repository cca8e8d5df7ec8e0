package backend

import (
	"context"
	"time"

	"github.com/sluice-serve/sluice/infer"
)

// MaxLoadFiles bounds the files of a Gateway's Load: bytes of names and contents.
const MaxLoadFiles = 256 << 20

// Gateway is what a model may ask of the gateway that loaded it: in its own name (Spec.Gateway),
// or for a request (Request.Gateway), whose caller, tenant, deadline and end it then has. Its
// methods may be called by any goroutine, as long as the model is loaded; for a request, until
// that is answered.
// Source: message Call, proto/worker/worker.proto.
type Gateway interface {
	// Infer executes a model and calls each for its answers, one after the other, on this
	// goroutine. What an answer holds is valid until each returns; an error of each, or the
	// end of ctx, cancels the rest. Errors are the model's, of infer. It returns when the
	// call has ended, and nothing of call is read any more.
	Infer(ctx context.Context, call *Call, each func(*Answer) error) error
	// Load loads a model, or loads it again. config, where it is not "", is a model config
	// in JSON in place of the folder's. files, with a config alone, are the whole model folder by paths
	// in it ("1/model.onnx"), at most MaxLoadFiles bytes; they are not read any more when Load returns.
	Load(ctx context.Context, model, config string, files map[string][]byte) error
	// Unload unloads a model, with dependents also those that an ensemble needs and nobody
	// else does.
	Unload(ctx context.Context, model string, dependents bool) error
	// Ready says that a version of a model can be asked; "" is any.
	Ready(ctx context.Context, model, version string) (bool, error)
	// Log writes a line into the gateway's log. It does not wait, and lines beyond what a
	// log is for are dropped there.
	Log(level LogLevel, text string)
	// Metric changes a figure. The first change of a family declares it. An error says what
	// contradicts that, or a bound.
	Metric(ctx context.Context, m *Metric) error
}

// Call is an inference that a model asks for.
// Source: message Inference, proto/worker/worker.proto.
type Call struct {
	Model   string
	Version string // "": by the version policy
	Inputs  []infer.Tensor
	Outputs []string // names; none: all of the model
	Params  infer.Params

	ID            string        // ""; that of the request that the call serves
	Priority      uint64        // 0: that of the request that the call serves
	Timeout       time.Duration // for waiting in queues; 0: what is left of that of the request
	Correlation   infer.Correlation
	SequenceStart bool
	SequenceEnd   bool
	// Stream takes any number of answers; without it the model must not be decoupled, and
	// there is one.
	Stream bool
}

// Answer is one answer to a Call. The last one of a stream may have no outputs.
type Answer struct {
	Outputs []infer.Tensor
	Params  infer.Params
	Final   bool
}

// LogLevel is how grave a line is. Source: enum LogLine.Level, proto/worker/worker.proto.
type LogLevel uint8

// The levels of lines.
const (
	LogError LogLevel = iota
	LogWarning
	LogInfo
	LogVerbose
)

// MetricKind is the kind of a family. Source: enum MetricUpdate.Kind, proto/worker/worker.proto.
type MetricKind uint8

// The kinds of families.
const (
	Counter MetricKind = iota
	Gauge
	Histogram
)

// MetricChange is what happens to a figure.
type MetricChange uint8

// The changes of figures: gauges are set, counters and gauges are added to, histograms observe. Each may be
// declared, which shows it as it is, and deleted, when the model has it no more.
const (
	Set MetricChange = iota
	Add
	Observe
	Declare
	Delete
)

// Metric is a change of one figure.
// Source: message MetricUpdate, proto/worker/worker.proto.
type Metric struct {
	Family  string
	Kind    MetricKind
	Help    string            // of the first change
	Buckets []float64         // of a histogram's first change: upper bounds, ascending
	Labels  map[string]string // of each change of a family the same names
	Change  MetricChange
	Value   float64
}
