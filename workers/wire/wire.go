package wire

import "github.com/sluice-serve/sluice/infer"

// Segment is a range of bytes in an arena or in the bytes behind the descriptor.
// One of a batch whose Offset has InAnswers added lies in the response arena of the worker
// that gets it: what one of its models answered is the next one's input.
type Segment struct {
	Offset int64
	Length int64
}

// InAnswers marks the Offset of a segment in the response arena. No arena is that large.
const InAnswers = int64(1) << 62

// A segment in a region of a client's memory has inRegion added to its Offset, and above
// the offset in the region its slot. No arena is that large.
const (
	inRegion   = int64(1) << 61
	regionBits = 41 // infer.MaxRegionSize is within them
	slotMask   = 1<<20 - 1
)

// InRegion is the segment of n bytes at off in the region of a slot.
func InRegion(slot uint32, off, n int64) Segment {
	return Segment{Offset: inRegion | int64(slot&slotMask)<<regionBits | off&(1<<regionBits-1), Length: n}
}

// Region is where the segment lies if that is in a region: its slot, and the offset in it.
func (s Segment) Region() (slot uint32, off int64, ok bool) {
	if s.Offset&(inRegion|InAnswers) != inRegion {
		return 0, 0, false
	}
	return uint32(s.Offset >> regionBits & slotMask), s.Offset & (1<<regionBits - 1), true
}

// Slots above those of clients' memory are of resident outputs, which stay in the device memory
// of their worker, up to LastResident. The destination Resident asks for that.
const (
	FirstResident = infer.MaxRegions + 1
	LastResident  = slotMask - 1
)

// Resident is the destination of an output that may stay in the device memory it was made in.
var Resident = InRegion(slotMask, 0, 0)

// isInput marks the Offset of an output that is an input of its request, whose number in the
// batch is in the other bits.
const isInput = int64(1) << 60

// IsInput is the segment of an output that is input k of the batch, as the request has it, of
// n bytes.
func IsInput(k int, n int64) Segment { return Segment{Offset: isInput | int64(k), Length: n} }

// Input is the number of the input that an output of this segment is.
func (s Segment) Input() (k int64, ok bool) {
	return s.Offset &^ isInput, s.Offset&(isInput|inRegion|InAnswers) == isInput
}

// Batch is an execution order for one instance.
type Batch struct {
	ID uint64
	// Rows is the sum of the requests' rows; 0 for a model without batch dimension.
	Rows     int
	Requests []Request
	Inputs   []Input
}

// Request is what a backend may know of one request of a batch.
type Request struct {
	ID      string
	Rows    int
	Params  infer.Params
	Outputs []string // names asked for; empty: all
	// Places are where outputs go, by index of Outputs: segments in regions whose Length is
	// the room there is; Resident: it may stay in device memory; the zero Segment: the output is
	// answered. Empty: all are.
	Places      []Segment
	Correlation infer.Correlation
	Start, End  bool   // of its sequence
	Cancel      uint32 // index of its cancel flag in the batch's flag bytes
	Timeout     int64  // nanoseconds left when the batch was sent; 0: none
}

// Input is one input of the whole batch; more than one segment has to be gathered.
type Input struct {
	Name     string
	Datatype infer.Datatype
	Shape    []int64
	Layout   infer.Layout
	Extents  [][]int64 // shapes of the requests' own tensors; with infer.Ragged alone
	Segments []Segment
}

// Result is the worker's answer: the end of a batch, or with More set a part of it.
type Result struct {
	ID         uint64 // of the batch
	More       bool
	Free       bool         // with More: the instance takes its next batch, and this one stays open
	InputsRead bool         // with More, of a freed batch: the worker reads its inputs no more
	Code       infer.Code   // of Err
	Err        string       // the whole batch failed; "" otherwise
	Reason     infer.Reason // of Err, where it is a refusal
	Outputs    []Output     // of the whole batch
	Responses  []Response   // of single requests, in place of Outputs
	Compute    infer.ComputeTimes
}

// Output is one tensor in the response arena, in the region where its request wanted it, one
// of its request's inputs, or device memory in a slot that its worker chose.
type Output struct {
	Name     string
	Datatype infer.Datatype
	Shape    []int64
	Data     Segment
}

// Response answers one request of the batch.
type Response struct {
	Index   int
	Code    infer.Code
	Err     string // "" where it succeeded
	Reason  infer.Reason
	Final   bool
	Repeat  bool // it is not answered but to be executed again
	GoesOn  bool // with Err: the request has other answers after it
	Params  infer.Params
	Outputs []Output
}
