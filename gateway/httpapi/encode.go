package httpapi

import (
	"strconv"

	"github.com/sluice-serve/sluice/gateway/httpapi/internal/json"
	"github.com/sluice-serve/sluice/infer"
)

// decoupledText is the original's word on a model that answers more or less than once.
const decoupledText = "HTTP end point doesn't support models with decoupled transaction policy"

// Send is infer.Sink's: it encodes the one response of an inference.
func (x *exchange) Send(resp *infer.Response) error {
	x.sent++
	if x.sent > 1 || !resp.Final {
		resp.Memory.Release()
		x.fault = infer.Errorf(infer.Unsupported, decoupledText)
		return x.fault
	}
	x.reply.reset()
	x.reply.memory = resp.Memory
	x.reply.cacheFields(resp)
	if err := x.encode(resp); err != nil {
		x.fault = err
		return err
	}
	return nil
}

// encode writes the JSON part and names the binary outputs behind it.
func (x *exchange) encode(resp *infer.Response) error {
	r := x.reply
	r.Status = 200
	b := append(r.buf[:0], '{')
	if resp.ID != "" {
		b = append(json.AppendString(append(b, `"id":`...), resp.ID), ',')
	}
	head := len(b)
	if x.kept != nil {
		if k := x.kept.answers.last.Load(); k.fits(resp) {
			x.binary(resp, append(b, k.json...), k.size)
			return nil
		}
	}
	b = json.AppendString(append(b, `"model_name":`...), resp.Model)
	b = json.AppendString(append(b, `,"model_version":`...), resp.Version)
	if len(resp.Params) > 0 {
		b = appendParams(append(b, `,"parameters":`...), resp.Params)
	}
	b = append(b, `,"outputs":[`...)
	if large(resp) {
		done, err := x.inPieces(resp, b)
		if done || err != nil {
			return err
		}
		room := x.textSize(resp)
		if err := x.api.responses.Take(room); err != nil {
			return err
		}
		defer x.api.responses.Give(room) // what it really took is counted then
	}
	binaries, size := 0, int64(0)
	for i := range resp.Outputs {
		o := &resp.Outputs[i]
		if i > 0 {
			b = append(b, ',')
		}
		if err := checkSize(o); err != nil {
			r.buf = b
			return err
		}
		b = appendTensorHead(b, o)
		if !o.Place.IsZero() { // the client has it
			b = append(b, '}')
			continue
		}
		if x.wantsBinary(o.Name) {
			binaries++
			size += int64(len(o.Data))
			b = strconv.AppendInt(append(b, `,"parameters":{"binary_data_size":`...), int64(len(o.Data)), 10)
			b = append(b, '}', '}')
			continue
		}
		var err error
		if b, err = appendTensorData(b, o); err != nil {
			r.buf = b
			return err
		}
	}
	b = append(b, ']', '}')
	r.buf = b
	if binaries == 0 {
		r.ContentType = typeJSON
		r.memory.Release()
		r.memory = nil
		r.setBody(b)
		return nil
	}
	if x.kept != nil && binaries == len(resp.Outputs) {
		x.kept.answers.met(resp, b[head:], size)
	}
	x.binary(resp, b, size)
	return nil
}

// large says that a response's outputs together may be worth a Source.
func large(resp *infer.Response) bool {
	size := 0
	for i := range resp.Outputs {
		size += len(resp.Outputs[i].Data)
	}
	return size > largeBody
}

// inPieces lets a large response be encoded as it is written, behind the text b, which grew from the reply's own. That
// is done where nothing is binary, since the length of JSON before binary outputs must be known, and where nothing
// but this response is written.
func (x *exchange) inPieces(resp *infer.Response, b []byte) (done bool, err error) {
	size := int64(0)
	for i := range resp.Outputs {
		o := &resp.Outputs[i]
		if x.streaming || o.Place.IsZero() && x.wantsBinary(o.Name) {
			return false, nil
		}
		size += int64(len(o.Data))
	}
	for i := range resp.Outputs {
		o := &resp.Outputs[i]
		if err = checkSize(o); err == nil && o.Place.IsZero() && !json.HasForm(o.Datatype) {
			err = noForm(o.Datatype)
		}
		if err != nil {
			return false, err
		}
	}
	x.reply.buf = b
	x.reply.ContentType = typeJSON
	x.reply.setSource(newJSONSource(b, resp.Outputs), size)
	return true, nil
}

// textSize is the most bytes that the outputs of a response take which are written as JSON.
func (x *exchange) textSize(resp *infer.Response) (n int64) {
	for i := range resp.Outputs {
		if o := &resp.Outputs[i]; o.Place.IsZero() && (x.flat || !x.wantsBinary(o.Name)) {
			n += json.MaxSize(o.Datatype, int64(len(o.Data)))
		}
	}
	return n
}

// noForm refuses to write a datatype as JSON.
func noForm(d infer.Datatype) error {
	return infer.Errorf(infer.InvalidArg,
		"sending %s data via JSON is not supported. Please use the binary data format for output", d)
}

// binary makes the reply the JSON part b and the binary outputs behind it.
func (x *exchange) binary(resp *infer.Response, b []byte, size int64) {
	x.reply.ContentType = typeBinary
	x.reply.HeaderLength = int64(len(b))
	x.binaries(resp, b, size)
}

// binaries puts the binary outputs behind the JSON: small ones into the same chunk,
// others by reference.
func (x *exchange) binaries(resp *infer.Response, b []byte, size int64) {
	r := x.reply
	if int64(len(b))+size <= coalesce {
		for i := range resp.Outputs {
			if len(resp.Outputs[i].Data) > 0 && x.wantsBinary(resp.Outputs[i].Name) {
				b = append(b, resp.Outputs[i].Data...)
			}
		}
		r.memory.Release()
		r.memory = nil
		r.setBody(b)
		return
	}
	r.setBody(b)
	for i := range resp.Outputs {
		if o := &resp.Outputs[i]; len(o.Data) > 0 && x.wantsBinary(o.Name) {
			r.Chunks = append(r.Chunks, o.Data)
		}
	}
	r.Length += size
}

// wantsBinary says how an output is to be sent. binary_data_output counts only where
// the request lists no outputs, as in the original.
func (x *exchange) wantsBinary(name string) bool {
	if x.raw {
		return true
	}
	if len(x.said.outputs) == 0 {
		return x.said.binaryOutput
	}
	for i := range x.said.outputs {
		if o := &x.said.outputs[i]; o.name.equals(x.said.text, name) {
			return o.binary
		}
	}
	return false
}

func appendTensorHead(b []byte, o *infer.Tensor) []byte {
	b = json.AppendString(append(b, `{"name":`...), o.Name)
	b = append(append(b, `,"datatype":"`...), o.Datatype.String()...)
	b = append(b, `","shape":[`...)
	for i, n := range o.Shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

// checkSize holds an output's data against its shape: what does not fit is a fault of
// the model, never an answer.
func checkSize(o *infer.Tensor) error {
	if !o.Place.IsZero() { // who wrote it has checked it
		return nil
	}
	want, err := infer.ByteSize(o.Datatype, o.Shape)
	got := int64(len(o.Data))
	if o.Datatype == infer.Bytes && err == nil {
		if want, err = infer.Elements(o.Shape); err == nil {
			got, err = infer.CountBytesElements(o.Data)
		}
		if err == nil && got != want {
			return infer.Errorf(infer.Internal, "output '%s' of shape %v has %d elements, want %d", o.Name, o.Shape, got, want)
		}
	}
	if err != nil || o.Datatype == infer.Invalid || o.Datatype > infer.BF16 {
		return infer.Errorf(infer.Internal, "output '%s' of shape %v is no tensor: %s", o.Name, o.Shape, causeOf(err))
	}
	if got != want {
		return infer.Errorf(infer.Internal, "output '%s' of shape %v has %d bytes, want %d", o.Name, o.Shape, got, want)
	}
	return nil
}

func causeOf(err error) string {
	if err == nil {
		return "it has no datatype"
	}
	return err.Error()
}

// appendTensorData writes an output's data as JSON.
func appendTensorData(b []byte, o *infer.Tensor) ([]byte, error) {
	b, ok := json.AppendData(append(b, `,"data":`...), o.Datatype, o.Data)
	if !ok {
		return b, noForm(o.Datatype)
	}
	return append(b, '}'), nil
}

func appendParams(b []byte, params infer.Params) []byte {
	b = append(b, '{')
	for i := range params {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(append(json.AppendString(b, params[i].Name), ':'), &params[i].Value)
	}
	return append(b, '}')
}

func appendValue(b []byte, v *infer.Value) []byte {
	switch v.Kind {
	case infer.KindBool:
		return strconv.AppendBool(b, v.Bool)
	case infer.KindInt64:
		return strconv.AppendInt(b, v.Int, 10)
	case infer.KindUint64:
		return strconv.AppendUint(b, uint64(v.Int), 10)
	case infer.KindDouble:
		return json.AppendFloat(b, v.Double, 64)
	}
	return json.AppendString(b, v.Str)
}
