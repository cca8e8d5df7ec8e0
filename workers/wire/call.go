package wire

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// Call is an inference that a model asks its gateway for.
// Source: messages Call and Inference, proto/worker/worker.proto.
type Call struct {
	ID uint64
	// Handle is that of the model which calls. Instance, Batch and Request name the open
	// request that the call serves; Batch 0: it serves none.
	Handle   uint64
	Instance uint32
	Batch    uint64
	Request  uint32

	Model       string
	Version     string // "": by the version policy
	RequestID   string
	Priority    uint64
	Timeout     int64 // nanoseconds; 0: that of the request which the call serves
	Correlation infer.Correlation
	Start, End  bool // of its sequence
	Stream      bool // any number of answers is taken
	Params      infer.Params
	Outputs     []string // names asked for; empty: all
	// Inputs lie, as those of a batch, in the request arena or, with InAnswers, in the
	// response arena of the worker that calls.
	Inputs []Output
}

// Answer is one answer to a Call, the last with Final.
// Source: message CallAnswer, proto/worker/worker.proto.
type Answer struct {
	ID     uint64
	Final  bool
	Code   infer.Code   // of Err
	Err    string       // the call failed; "" otherwise
	Reason infer.Reason // of Err, where it is a refusal
	Params infer.Params
	// Outputs lie in the request arena or, with InAnswers, in the response arena of the
	// worker that called.
	Outputs []Output
}

// AppendCall writes c behind dst. It allocates only where dst is too small.
func AppendCall(dst []byte, c *Call) []byte {
	dst = append(dst, version, kindCall)
	dst = appendBool(dst, c.Start)
	dst = appendBool(dst, c.End)
	dst = le.AppendUint64(dst, c.ID)
	dst = le.AppendUint64(dst, c.Handle)
	dst = le.AppendUint64(dst, c.Batch)
	dst = le.AppendUint32(dst, c.Instance)
	dst = le.AppendUint32(dst, c.Request)
	dst = le.AppendUint64(dst, c.Correlation.ID)
	dst = le.AppendUint64(dst, uint64(c.Timeout))
	dst = le.AppendUint64(dst, c.Priority)
	dst = appendBool(dst, c.Stream)
	dst = append(dst, 0, 0, 0)
	dst = appendString(dst, c.Model)
	dst = appendString(dst, c.Version)
	dst = appendString(dst, c.RequestID)
	dst = appendString(dst, c.Correlation.Str)
	dst = le.AppendUint32(dst, uint32(len(c.Params)))
	dst = appendParams(dst, c.Params)
	dst = le.AppendUint32(dst, uint32(len(c.Outputs)))
	for _, name := range c.Outputs {
		dst = appendString(dst, name)
	}
	dst = le.AppendUint32(dst, uint32(len(c.Inputs)))
	return appendOutputs(dst, c.Inputs)
}

// DecodeCall reads all of src into c, as DecodeBatch does. src must not change meanwhile.
func DecodeCall(src []byte, c *Call) error {
	r := reader{src: src}
	r.begin(kindCall)
	c.Start, c.End = r.bool(), r.bool()
	if c.ID = r.u64(); c.ID == 0 {
		r.fail("a call without id")
	}
	c.Handle, c.Batch = r.u64(), r.u64()
	c.Instance, c.Request = r.u32(), r.u32()
	c.Correlation.ID = r.u64()
	c.Timeout = r.positive("a timeout")
	c.Priority = r.u64()
	c.Stream = r.bool()
	r.bytes(3)
	r.string(&c.Model)
	r.string(&c.Version)
	r.string(&c.RequestID)
	r.string(&c.Correlation.Str)
	c.Params = r.params(c.Params, r.count("parameters", minParam))
	c.Outputs = resize(c.Outputs, r.count("outputs", minString))
	for i := range c.Outputs {
		r.string(&c.Outputs[i])
	}
	c.Inputs = r.outputs(c.Inputs)
	return r.end()
}

// AppendAnswer writes a behind dst. It allocates only where dst is too small.
func AppendAnswer(dst []byte, a *Answer) []byte {
	dst = append(dst, version, kindAnswer)
	dst = appendBool(dst, a.Final)
	dst = append(dst, errorNumber(a.Code, a.Err))
	dst = le.AppendUint64(dst, a.ID)
	dst = appendString(dst, a.Err)
	dst = appendString(dst, string(a.Reason))
	dst = le.AppendUint32(dst, uint32(len(a.Params)))
	dst = appendParams(dst, a.Params)
	dst = le.AppendUint32(dst, uint32(len(a.Outputs)))
	return appendOutputs(dst, a.Outputs)
}

// DecodeAnswer reads all of src into a, as DecodeBatch does.
func DecodeAnswer(src []byte, a *Answer) error {
	r := reader{src: src}
	r.begin(kindAnswer)
	a.Final = r.bool()
	a.Code = r.code()
	if a.ID = r.u64(); a.ID == 0 {
		r.fail("an answer to no call")
	}
	r.string(&a.Err)
	r.string((*string)(&a.Reason))
	a.Params = r.params(a.Params, r.count("parameters", minParam))
	a.Outputs = r.outputs(a.Outputs)
	return r.end()
}

// CallMessage is the message of c, which shares c's names, shapes and parameters. The inputs'
// data stands in its tensors, which the caller sets.
func CallMessage(c *Call) *worker.Call {
	return &worker.Call{Id: c.ID, Handle: c.Handle, Instance: c.Instance, Batch: c.Batch, Request: c.Request,
		What: &worker.Call_Infer{Infer: &worker.Inference{Model: c.Model, Version: c.Version, RequestId: c.RequestID,
			Parameters: paramMessages(c.Params), Outputs: c.Outputs, Inputs: outputMessages(c.Inputs), TimeoutNs: c.Timeout,
			Priority: c.Priority, SequenceId: c.Correlation.ID, SequenceName: c.Correlation.Str, SequenceStart: c.Start,
			SequenceEnd: c.End, Stream: c.Stream}}}
}

// ReadCall fills c from the message of an inference and its tensors; it checks what DecodeCall
// does. Segments count from the start of the first tensor. What c points to is the message's.
// An error is Internal.
func ReadCall(m *worker.Call, c *Call) error {
	q := m.GetInfer()
	r := messageReader{tensors: m.GetTensors()}
	*c = Call{ID: m.GetId(), Handle: m.GetHandle(), Instance: m.GetInstance(), Batch: m.GetBatch(), Request: m.GetRequest(),
		Model: q.GetModel(), Version: q.GetVersion(), RequestID: q.GetRequestId(), Priority: q.GetPriority(), Timeout: q.GetTimeoutNs(),
		Correlation: infer.Correlation{ID: q.GetSequenceId(), Str: q.GetSequenceName()}, Start: q.GetSequenceStart(),
		End: q.GetSequenceEnd(), Stream: q.GetStream(), Params: r.params(q.GetParameters()), Outputs: q.GetOutputs()}
	switch {
	case q == nil || m.GetId() == 0:
		r.fail("a call without id, or for no inference")
	case c.Timeout < 0:
		r.fail("a timeout is %d", c.Timeout)
	}
	c.Inputs = r.outputs(q.GetInputs())
	if len(r.tensors) > 0 {
		r.fail("%d tensors are left", len(r.tensors))
	}
	return r.err
}

// AnswerMessage is the message of a, which shares a's names, shapes and parameters. The
// outputs' data stands in its tensors, which the caller sets.
func AnswerMessage(a *Answer) *worker.CallAnswer {
	return &worker.CallAnswer{Id: a.ID, Final: a.Final, Error: errorMessage(a.Code, a.Reason, a.Err), Parameters: paramMessages(a.Params),
		Outputs: outputMessages(a.Outputs)}
}

// ReadAnswer fills a from a message and its tensors; it checks what DecodeAnswer does. Segments
// count from the start of the first tensor. What a points to is the message's. An error is
// Internal.
func ReadAnswer(m *worker.CallAnswer, a *Answer) error {
	r := messageReader{tensors: m.GetTensors()}
	*a = Answer{ID: m.GetId(), Final: m.GetFinal(), Params: r.params(m.GetParameters()), Outputs: r.outputs(m.GetOutputs())}
	a.Code, a.Reason, a.Err = r.failure(m.GetError())
	switch {
	case m.GetId() == 0:
		r.fail("an answer to no call")
	case len(r.tensors) > 0:
		r.fail("%d tensors are left", len(r.tensors))
	}
	return r.err
}
