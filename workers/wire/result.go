package wire

import (
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/worker"
)

// AppendResult writes res behind dst. It allocates only where dst is too small.
func AppendResult(dst []byte, res *Result) []byte {
	dst = append(dst, version, kindResult)
	dst = append(dst, endingNumber(res))
	dst = append(dst, errorNumber(res.Code, res.Err))
	dst = le.AppendUint64(dst, res.ID)
	dst = le.AppendUint64(dst, uint64(res.Compute.Input))
	dst = le.AppendUint64(dst, uint64(res.Compute.Infer))
	dst = le.AppendUint64(dst, uint64(res.Compute.Output))
	dst = appendString(dst, res.Err)
	dst = appendString(dst, string(res.Reason))
	dst = le.AppendUint32(dst, uint32(len(res.Outputs)))
	dst = appendOutputs(dst, res.Outputs)
	dst = le.AppendUint32(dst, uint32(len(res.Responses)))
	for i := range res.Responses {
		p := &res.Responses[i]
		dst = le.AppendUint32(dst, uint32(p.Index))
		dst = append(dst, errorNumber(p.Code, p.Err))
		dst = appendBool(dst, p.Final)
		dst = appendBool(dst, p.Repeat)
		dst = appendBool(dst, p.GoesOn)
		dst = appendString(dst, p.Err)
		dst = appendString(dst, string(p.Reason))
		dst = le.AppendUint32(dst, uint32(len(p.Params)))
		dst = appendParams(dst, p.Params)
		dst = le.AppendUint32(dst, uint32(len(p.Outputs)))
		dst = appendOutputs(dst, p.Outputs)
	}
	return dst
}

func appendOutputs(dst []byte, outputs []Output) []byte {
	for i := range outputs {
		o := &outputs[i]
		dst = appendTensor(dst, o.Name, o.Datatype, o.Shape)
		dst = appendSegment(dst, o.Data)
	}
	return dst
}

// DecodeResult reads all of src into res, as DecodeBatch does. src must not change
// meanwhile: what lies in memory that a worker can write is copied before. Whether
// Index is a request of the batch is the caller's to check.
func DecodeResult(src []byte, res *Result) error {
	r := reader{src: src}
	r.begin(kindResult)
	r.ending(res)
	res.Code = r.code()
	res.ID = r.u64()
	res.Compute.Input = r.positive("a duration")
	res.Compute.Infer = r.positive("a duration")
	res.Compute.Output = r.positive("a duration")
	r.string(&res.Err)
	r.string((*string)(&res.Reason))
	res.Outputs = r.outputs(res.Outputs)
	res.Responses = resize(res.Responses, r.count("responses", minResponse))
	for i := range res.Responses {
		p := &res.Responses[i]
		p.Index = int(r.u32())
		p.Code = r.code()
		p.Final = r.bool()
		p.Repeat = r.bool()
		p.GoesOn = r.bool()
		r.string(&p.Err)
		r.string((*string)(&p.Reason))
		p.Params = r.params(p.Params, r.count("parameters", minParam))
		p.Outputs = r.outputs(p.Outputs)
		if !p.mayGoOn(res.More) {
			r.fail("%s", goesOnText)
		}
	}
	return r.end()
}

// mayGoOn says that a response may say what it says of going on; more is its result's.
func (p *Response) mayGoOn(more bool) bool {
	return !p.GoesOn || p.Err != "" && more && !p.Final && !p.Repeat
}

const goesOnText = "a response goes on that is no error, is its request's last, or stands in its batch's last result"

// The third byte of a result: bits.
const (
	bitMore = 1
	bitFree = 2 // with bitMore alone
	bitRead = 4 // with bitMore alone
)

func endingNumber(res *Result) (n byte) {
	if res.More {
		n |= bitMore
	}
	if res.Free {
		n |= bitFree
	}
	if res.InputsRead {
		n |= bitRead
	}
	return n
}

// ending reads whether other results of the batch follow, whether its instance is free, and
// whether its inputs are read.
func (r *reader) ending(res *Result) {
	n := r.u8()
	if n > bitMore|bitFree|bitRead || n != 0 && n&bitMore == 0 {
		r.fail("a result ends its batch with %d, want 0, or %d with %d, %d or both", n, bitMore, bitFree, bitRead)
	}
	res.More, res.Free, res.InputsRead = n&bitMore != 0, n&bitFree != 0, n&bitRead != 0
}

func (r *reader) outputs(dst []Output) []Output {
	dst = resize(dst, r.count("outputs", minOutput))
	for i := range dst {
		o := &dst[i]
		o.Shape = r.tensor(&o.Name, &o.Datatype, o.Shape)
		o.Data = r.segment()
		r.checkSize(o.Name, o.Datatype, o.Shape, o.Data.Length)
	}
	return dst
}

// ResultID reads the ID of the batch that an encoded result belongs to.
func ResultID(src []byte) (uint64, error) {
	r := reader{src: src}
	r.begin(kindResult)
	r.bytes(2)
	return r.u64(), r.err
}

// errorNumber is the number of an error's code; OK where there is no error.
func errorNumber(c infer.Code, text string) byte {
	if text == "" {
		return byte(worker.Code_OK)
	}
	return byte(codeNumber(c))
}
